mod determined;
fn main() {
    for _ in 0..2 {
        std::thread::spawn(|| {
            determined::seed(7);
            let rt = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            rt.block_on(async {
                determined::begin(1_790_000_000_000_000);
                let m: std::collections::HashMap<u32, u32> = (0..8).map(|n| (n, n)).collect();
                println!("{:?}", m.keys().collect::<Vec<_>>());
                let a = std::time::Instant::now();
                tokio::time::sleep(std::time::Duration::from_secs(5)).await;
                println!("{:?} {:?}", a.elapsed(), std::time::SystemTime::now());
                tokio::select! { () = async {} => println!("a"), () = async {} => println!("b"), () = async {} => println!("c") }
                tokio::select! { () = async {} => println!("a"), () = async {} => println!("b"), () = async {} => println!("c") }
                determined::end();
            });
        }).join().unwrap();
    }
}
