//! A broken policy on reload: the sidecar refuses it, and no output has the secret.

use super::{Folder, GOOD, Running, SECRET, STORES, assert_none, broken_files};

fn is_refused_without_the_secret_on_reload(store: &str) {
    let good = GOOD.replace("STORE", store);
    let folder = Folder::with(&good);
    let running = Running::start(&folder, folder.serve());
    let is_refused = "the policy file is refused";
    let refused = || running.get("/readyz").contains(is_refused);
    let mut leaks = Vec::new();
    for (number, (case, file, named)) in broken_files(store).into_iter().enumerate() {
        folder.write(&file);
        running.reread();
        running.eventually(&case, refused);
        // The log is written by a thread of its own.
        let logged = || running.log().contains("the previous policy stays in force");
        running.eventually(&case, logged);
        let all = running.everything();
        for (place, printed) in &all {
            if printed.contains(SECRET) {
                leaks.push(format!("{case}: {place}"));
            }
        }
        for (place, printed) in [&all[0], &all[3]] {
            let lost = named.iter().find(|name| !printed.contains(**name));
            if let Some(name) = lost {
                leaks.push(format!("{case}: no {name} in {place}: {printed}"));
            }
        }
        // So that each leak is reported once.
        running.forget_log();
        // A different text each time: an unchanged file is not reloaded.
        folder.write(format!("{good}# {number}\n").as_bytes());
        running.reread();
        running.eventually(&case, || !refused());
    }
    assert_none(&leaks);
}

#[test]
fn no_secret_on_reload() {
    // With a Redis, a Cluster and a socket: most of the time each waits.
    std::thread::scope(|scope| {
        for store in [STORES[0], STORES[2], STORES[3]] {
            scope.spawn(|| is_refused_without_the_secret_on_reload(store));
        }
    });
}
