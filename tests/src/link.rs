//! A link between a client and a server of this machine, as between two hosts: a network namespace whose kernel forwards the
//! packets, slowly or not, or drops them.
//!
//! Needs root, `ip`, `tc` and `iptables`.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process;

/// What happens to packets, both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packets {
    /// Forwarded.
    Pass,
    /// Dropped.
    Drop,
    /// One in so many is dropped, at random.
    Lose(u32),
    /// Forwarded at so many kbit/s, both ways together: more than that waits, and after a second is dropped.
    Narrow(u32),
}

/// A link; it ends when it is dropped.
#[derive(Debug)]
pub struct Link {
    namespace: String,
    /// A number of its own, of which its addresses are made.
    number: u32,
}

/// Addresses for measurements between hosts (RFC 2544), which nothing else on a machine uses.
fn address(number: u32, host: u32) -> String {
    format!("198.18.{}.{}", number / 64 % 256, number % 64 * 4 + host)
}

impl Link {
    /// Makes one.
    ///
    /// # Panics
    /// The system refuses it: not root, or without `ip` or `iptables`.
    pub fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id().wrapping_add(COUNT.fetch_add(4_096, Ordering::Relaxed));
        let number = number % (64 * 256);
        let this = Self {
            namespace: format!("sg{number}"),
            number,
        };
        let (name, outside, inside) = (
            &this.namespace,
            format!("sgo{number}"),
            format!("sgi{number}"),
        );
        let (server, own) = (this.server(), this.own());
        run(&format!("ip netns add {name}"));
        run(&format!(
            "ip link add {outside} type veth peer name {inside} netns {name}"
        ));
        run(&format!("ip addr add {server}/30 dev {outside}"));
        run(&format!("ip link set {outside} up"));
        run(&format!("ip -n {name} addr add {own}/30 dev {inside}"));
        run(&format!("ip -n {name} link set {inside} up"));
        this.inside("sysctl -qw net.ipv4.ip_forward=1");
        this.inside(&format!(
            "iptables -t nat -A PREROUTING -p tcp -d {own} -j DNAT --to-destination {server}"
        ));
        this.inside("iptables -t nat -A POSTROUTING -j MASQUERADE");
        this
    }

    /// The address that the server has to listen on.
    pub fn server(&self) -> String {
        address(self.number, 1)
    }

    /// The address that clients connect to, with the server's port.
    pub fn own(&self) -> String {
        address(self.number, 2)
    }

    /// Sets what happens to packets from now on, of open connections too.
    pub fn set(&self, packets: Packets) {
        self.inside("iptables -F FORWARD");
        let device = format!("sgi{}", self.number);
        // Everything that is forwarded leaves by this device, to the server and to clients.
        self.inside(&format!("tc qdisc replace dev {device} root pfifo"));
        match packets {
            Packets::Pass => {}
            Packets::Drop => self.inside("iptables -A FORWARD -j DROP"),
            Packets::Lose(one_in) => self.inside(&format!(
                "iptables -A FORWARD -m statistic --mode random --probability {} -j DROP",
                1.0 / f64::from(one_in)
            )),
            Packets::Narrow(kbit) => self.inside(&format!(
                "tc qdisc replace dev {device} root tbf rate {kbit}kbit burst 2kb latency 1s"
            )),
        }
    }

    fn inside(&self, command: &str) {
        run(&format!("ip netns exec {} {command}", self.namespace));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Its end of the pair of devices goes with it, and so does the other. A panic here would hide the test's own.
        let _ = command(&format!("ip netns del {}", self.namespace)).output();
    }
}

fn command(words: &str) -> Command {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

fn run(words: &str) {
    let install = "needs root; install it: tests/setup chaos";
    process::run(&mut command(words), install);
}
