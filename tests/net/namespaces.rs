//! Hosts and cables. Names are this process's own; what a killed test left behind is swept by the next one.

use std::process::{Command, Output};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

const PREFIX: &str = "accltest";

/// Hosts, each a network namespace with nothing but a loopback interface at first.
pub(crate) struct Net {
    hosts: Vec<String>,
}

impl Net {
    /// None, and a loud line, where namespaces cannot be made.
    pub(crate) fn new(hosts: usize) -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut net = Self { hosts: Vec::new() };
        for host in 0..hosts {
            let name = format!("{PREFIX}-{}-{number}-{host}", std::process::id());
            let made = Command::new("ip").args(["netns", "add", &name]).output();
            match made {
                Ok(output) if output.status.success() => net.hosts.push(name),
                refused => {
                    let why = refused.map_or_else(|error| error.to_string(), |output| text(&output));
                    eprintln!(
                        "SKIPPED: no network namespaces here, so nothing was tested between hosts: {why}"
                    );
                    return None;
                }
            }
            // Addresses can be used at once, and are those that the test gives.
            net.write(host, "net/ipv6/conf/default/accept_dad", "0");
            net.write(host, "net/ipv6/conf/all/accept_dad", "0");
            net.ip(host, "link set lo up");
        }
        Some(net)
    }

    /// NET2: two hosts on one cable, eth0 on both, with IPv4 and IPv6.
    pub(crate) fn two() -> Option<Self> {
        let net = Self::new(2)?;
        net.cable((0, "eth0", &["10.9.0.1/24", "fd09::1/64"]), (1, "eth0", &["10.9.0.2/24", "fd09::2/64"]));
        Some(net)
    }

    /// Hosts 0 and 1, each on its own cable to the router, host 2.
    pub(crate) fn routed() -> Option<Self> {
        let net = Self::new(3)?;
        net.write(2, "net/ipv4/ip_forward", "1");
        net.write(2, "net/ipv6/conf/all/forwarding", "1");
        for host in 0..2 {
            let (v4, v6) = (format!("10.{host}.0"), format!("fd0{host}:"));
            net.cable(
                (host, "eth0", &[&format!("{v4}.2/24"), &format!("{v6}:2/64")]),
                (2, &format!("eth{host}"), &[&format!("{v4}.1/24"), &format!("{v6}:1/64")]),
            );
            net.ip(host, &format!("route add default via {v4}.1"));
            net.ip(host, &format!("-6 route add default via {v6}:1"));
        }
        Some(net)
    }

    /// Hosts on a switch (which is the last host), eth0 on each, with IPv4 and IPv6.
    pub(crate) fn switched(hosts: usize) -> Option<Self> {
        let net = Self::new(hosts + 1)?;
        net.ip(hosts, "link add switch type bridge");
        net.ip(hosts, "link set switch up");
        for host in 0..hosts {
            let (v4, v6) = (format!("10.9.0.{}/24", host + 1), format!("fd09::{}/64", host + 1));
            let port = format!("port{host}");
            net.cable((host, "eth0", &[&v4, &v6]), (hosts, &port, &[]));
            net.ip(hosts, &format!("link set {port} master switch"));
        }
        Some(net)
    }

    /// Joins two hosts: for each end the host, the interface and its addresses.
    pub(crate) fn cable(&self, one: (usize, &str, &[&str]), other: (usize, &str, &[&str])) {
        // Both ends begin in the first host, under names that nobody else has.
        let far = format!("far{}", other.1);
        self.ip(one.0, &format!("link add {} type veth peer name {far}", one.1));
        self.ip(one.0, &format!("link set {far} netns {}", self.hosts[other.0]));
        self.ip(other.0, &format!("link set {far} name {}", other.1));
        for (host, name, addresses) in [one, other] {
            self.ip(host, &format!("link set {name} up"));
            for address in addresses {
                self.ip(host, &format!("addr add {address} dev {name}"));
            }
        }
        for (host, name, _) in [one, other] {
            self.await_carrier(host, name);
        }
    }

    /// The kernel says a moment later that an interface has a carrier; nobody uses it before.
    #[track_caller]
    fn await_carrier(&self, host: usize, name: &str) {
        for _ in 0..500 {
            let output =
                Command::new("ip").args(["-n", &self.hosts[host], "link", "show", name]).output().unwrap();
            if text(&output).contains("state UP") {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{name} of host {host} does not get a carrier");
    }

    /// Lets no more than `rate` ("1gbit", say) leave by an interface.
    #[allow(dead_code)]
    pub(crate) fn shape(&self, host: usize, interface: &str, rate: &str) {
        self.tool(
            host,
            "tc",
            &format!("qdisc add dev {interface} root tbf rate {rate} burst 256kb latency 50ms"),
        );
    }

    /// An interface that is up, has a carrier, and leads nowhere.
    pub(crate) fn decoy(&self, host: usize, name: &str, addresses: &[&str]) {
        self.ip(host, &format!("link add {name} type veth peer name {name}x"));
        self.ip(host, &format!("link set {name}x up"));
        self.ip(host, &format!("link set {name} up"));
        addresses.iter().for_each(|address| self.ip(host, &format!("addr add {address} dev {name}")));
    }

    /// A bridge such as container programs make, with something plugged in.
    pub(crate) fn bridge(&self, host: usize, name: &str, address: &str) {
        self.ip(host, &format!("link add {name} type bridge"));
        self.decoy(host, &format!("v{name}"), &[]);
        self.ip(host, &format!("link set v{name} master {name}"));
        self.ip(host, &format!("link set {name} up"));
        self.ip(host, &format!("addr add {address} dev {name}"));
    }

    /// On the router: nothing more comes through that this rule matches, without a word ("ipproto tcp dport 80", say).
    pub(crate) fn swallow(&self, router: usize, rule: &str) {
        self.ip(router, &format!("rule add pref 1 {rule} blackhole"));
        self.ip(router, &format!("-6 rule add pref 1 {rule} blackhole"));
    }

    /// `ip` in a host.
    #[track_caller]
    pub(crate) fn ip(&self, host: usize, arguments: &str) {
        let mut command = Command::new("ip");
        command.args(["-n", &self.hosts[host]]).args(arguments.split_whitespace());
        let output = command.output().unwrap();
        assert!(output.status.success(), "ip {arguments}: {}", text(&output));
    }

    /// A program in a host.
    #[track_caller]
    pub(crate) fn tool(&self, host: usize, program: &str, arguments: &str) {
        let mut command = self.inside(host);
        let output = command.arg(program).args(arguments.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "{program} {arguments}: {}", text(&output));
    }

    /// Sets one of the kernel's parameters in a host.
    #[track_caller]
    pub(crate) fn write(&self, host: usize, parameter: &str, value: &str) {
        let script = format!("echo {value} > /proc/sys/{parameter}");
        let output = self.inside(host).args(["sh", "-c", &script]).output().unwrap();
        assert!(output.status.success(), "{parameter}: {}", text(&output));
    }

    /// A command that runs what its further arguments say in a host that has its own name and /dev/shm.
    pub(crate) fn command(&self, host: usize) -> Command {
        let mut command = self.inside(host);
        command.args(["unshare", "--uts", "--mount", "sh", "-c"]);
        command.arg(format!(
            "echo host{host} > /proc/sys/kernel/hostname; mount -t tmpfs shm /dev/shm 2>/dev/null; exec \"$0\" \"$@\""
        ));
        command
    }

    /// What the host's namespace is called.
    #[allow(dead_code)]
    pub(crate) fn name(&self, host: usize) -> &str {
        &self.hosts[host]
    }

    fn inside(&self, host: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts[host]]);
        command
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for host in &self.hosts {
            let _ = Command::new("ip").args(["netns", "del", host]).output();
        }
    }
}

/// Removes the namespaces of tests that are no longer there.
fn sweep() {
    let Ok(output) = Command::new("ip").args(["netns", "list"]).output() else { return };
    for line in text(&output).lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let mut parts = name.split('-');
        let (Some(PREFIX), Some(process)) = (parts.next(), parts.next()) else { continue };
        if !std::path::Path::new("/proc").join(process).exists() {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
