//! How the processes of a run find each other, and what becomes of a link that is cut.

use crate::processes::{GPT2, Launched, PATIENCE, bench, start, train};
use crate::tasks::Bench;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use xtrain_test_groups::Group;

/// A launcher of node 0 that waits for a second node, and its endpoint.
fn waiting_node(bench: &Bench, port: u16, secret: &str) -> Launched {
    let command = train(GPT2, 2, "--output_dir out");
    let line = format!(
        "launch --nnodes 2 --node_rank 0 --rdzv_endpoint 127.0.0.1:{port} --rdzv_timeout 30 -- {command}"
    );
    let mut process = bench.command(&line).process();
    process.env("XTRAIN_RDZV_SECRET", secret);
    start(process)
}

pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Everything that can be wrong about the rendezvous ends in a sentence, in time.
#[test]
fn a_rendezvous_that_cannot_be_says_why() {
    let Some(bench) = bench() else { return };
    let command = train(GPT2, 2, "--output_dir out");
    let port = free_port();
    let endpoint = format!("127.0.0.1:{port}");
    let join = |secret: &str, flags: &str| {
        let mut process = bench
            .command(&format!("launch {flags} --rdzv_timeout 3 -- {command}"))
            .process();
        process.env("XTRAIN_RDZV_SECRET", secret);
        let began = Instant::now();
        let run = start(process).finish();
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{flags}: {}",
            run.stdout
        );
        assert_eq!(run.code, Some(1), "{flags}: {}", run.stdout);
        run.stdout
    };
    let nobody = join(
        "correct horse",
        &format!("--nnodes 2 --node_rank 1 --rdzv_endpoint {endpoint}"),
    );
    assert!(
        nobody.contains("could not be reached within 3 s"),
        "{nobody}"
    );

    let mut first = waiting_node(&bench, port, "correct horse");
    let until = Instant::now() + PATIENCE;
    while std::net::TcpStream::connect(&endpoint).is_err() {
        assert!(
            Instant::now() < until && first.child.try_wait().unwrap().is_none(),
            "node 0 does not listen"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let taken = join(
        "correct horse",
        &format!("--nnodes 2 --node_rank 0 --rdzv_endpoint {endpoint}"),
    );
    assert!(
        taken.contains("cannot listen at") && taken.contains("another job may run there"),
        "{taken}"
    );
    let stranger = join(
        "battery staple",
        &format!("--nnodes 2 --node_rank 1 --rdzv_endpoint {endpoint}"),
    );
    assert!(
        stranger.contains("it presented a different secret"),
        "{stranger}"
    );
    let other = join(
        "correct horse",
        &format!("--nnodes 3 --node_rank 1 --rdzv_endpoint {endpoint}"),
    );
    assert!(
        other.contains("it was started with --nnodes 3, node 0 with --nnodes 2"),
        "{other}"
    );
    let more = join(
        "correct horse",
        &format!("--nnodes 2 --nproc_per_node 2 --node_rank 1 --rdzv_endpoint {endpoint}"),
    );
    assert!(
        more.contains("--nproc_per_node 2, node 0 with --nproc_per_node 1"),
        "{more}"
    );
    let _ = first.child.kill();
    let _ = first.child.wait();

    // The environment of another launcher: a rank with the wrong world size.
    let alone = |rank: &str, world: &str| {
        let line = train(
            GPT2,
            2,
            &format!("--data_parallel {world} --output_dir alone-{rank}"),
        );
        let mut process = bench.command(&line).process();
        process
            .env("RANK", rank)
            .env("LOCAL_RANK", rank)
            .env("WORLD_SIZE", world)
            .env("MASTER_ADDR", "127.0.0.1");
        process
            .env("MASTER_PORT", port.to_string())
            .env("XTRAIN_RDZV_SECRET", "correct horse")
            .env("XTRAIN_RDZV_TIMEOUT", "120");
        start(process)
    };
    let zero = alone("0", "2");
    let wrong = alone("1", "4").finish();
    assert_eq!(wrong.code, Some(1), "{}", wrong.stdout);
    assert!(
        wrong
            .stdout
            .contains("it says that the job has 4 processes, and this one has 2"),
        "{}",
        wrong.stdout
    );
    let one = alone("1", "2");
    // Without a launcher, by the environment alone.
    for run in [zero, one] {
        let run = run.finish();
        assert_eq!(run.code, Some(0), "{}", run.stdout);
    }
    assert!(
        bench.path("alone-0/model.safetensors").exists()
            && !bench.path("alone-1/model.safetensors").exists()
    );
}

/// Hands bytes on between those that connect to it and a port, until it is asked to cut them off.
struct Relay {
    address: std::net::SocketAddr,
    open: std::sync::Arc<std::sync::Mutex<Vec<std::net::TcpStream>>>,
}

impl Relay {
    fn to(port: u16) -> Relay {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open = std::sync::Arc::<std::sync::Mutex<Vec<std::net::TcpStream>>>::default();
        let shared = open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = std::net::TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
                shared.lock().unwrap().extend([client, server]);
            }
        });
        Relay { address, open }
    }

    fn cut(&self) -> usize {
        let open: Vec<_> = self.open.lock().unwrap().drain(..).collect();
        for stream in &open {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        open.len()
    }
}

/// The connections of a launcher and its rank to the rendezvous are cut while they train: they come
/// back, and the run goes on until a signal ends it.
#[test]
fn a_connection_that_is_cut_comes_back() {
    let Some(bench) = bench() else { return };
    let port = free_port();
    let relay = Relay::to(port);
    let ends = [format!("127.0.0.1:{port}"), relay.address.to_string()];
    let command = train(
        GPT2,
        2,
        "--max_steps 1000000 --save_strategy no --output_dir out",
    );
    let mut nodes = [0, 1].map(|node| {
        let line = format!(
            "launch --nnodes 2 --node_rank {node} --rdzv_endpoint {} --heartbeat_timeout 10 -- {command}",
            ends[node]
        );
        let mut process = bench.command(&line).process();
        process.env("XTRAIN_RDZV_SECRET", "correct horse");
        start(process)
    });
    nodes[0].wait_for(&["[rank 0] {'loss'"]);
    for _ in 0..3 {
        assert!(relay.cut() >= 2, "the launcher and its rank are connected");
        std::thread::sleep(Duration::from_secs(2));
    }
    // The other node's rank hears of it with a heartbeat.
    // SAFETY: the launcher has not been waited for.
    unsafe { libc::kill(nodes[0].child.id() as i32, libc::SIGTERM) };
    let [first, second] = nodes.map(Launched::finish);
    assert_eq!(
        (first.code, second.code),
        (Some(143), Some(143)),
        "{}\n{}",
        first.stdout,
        second.stdout
    );
    let lost = "trying to reach it for";
    assert!(second.stdout.contains(lost), "{}", second.stdout);
    assert!(
        second.stdout.contains("launch: reached the rendezvous at"),
        "{}",
        second.stdout
    );
    assert!(!first.stdout.contains(lost), "{}", first.stdout);
    let saved = fs::read_dir(bench.path("out")).unwrap().flatten();
    let names: Vec<_> = saved.map(|file| file.file_name()).collect();
    assert!(
        names
            .iter()
            .any(|name| name.to_string_lossy().starts_with("checkpoint-")),
        "{names:?}"
    );
}

#[test]
fn what_launch_cannot_do_is_refused_at_once() {
    for (line, part) in [
        (
            "launch --nnodes 2 -- train clm",
            "several machines need a rendezvous",
        ),
        (
            "launch --nnodes 2 --node_rank 2 --rdzv_endpoint a:1 -- train clm",
            "--node_rank 2 is out of range for --nnodes 2",
        ),
        (
            "launch -- quickstart",
            "launch runs train or eval, not `quickstart`",
        ),
        ("launch", "launch runs train or eval"),
        (
            "launch --max_steps 3 -- train clm",
            "put that command after --",
        ),
        (
            "launch --device cuda -- train clm",
            "--device belongs to the command that is launched",
        ),
        ("launch --nproc_per_node 0 -- train clm", "nproc_per_node"),
    ] {
        let run = crate::support::xtrain().args(line.split(' ')).run();
        assert_eq!(run.code, Some(2), "{line}: {}", run.stderr);
        assert!(run.stderr.contains(part), "{line}: {}", run.stderr);
    }
    let run = crate::support::xtrain()
        .args("launch --nnodes 2 --node_rank 1 --rdzv_endpoint 127.0.0.1:9 -- train clm".split(' '))
        .run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(
        run.stderr.contains("several nodes need one secret"),
        "{}",
        run.stderr
    );
}

/// Two network namespaces with a cable between them, gone when dropped.
struct TwoHosts {
    names: [String; 2],
}

impl TwoHosts {
    /// `None`, recorded as skipped, where namespaces cannot be made.
    fn new() -> Option<Self> {
        let id = std::process::id() % 10_000;
        let names = [format!("xtrain{id}a"), format!("xtrain{id}b")];
        let hosts = TwoHosts { names };
        let [a, b] = &hosts.names;
        let script = format!(
            "ip netns add {a} && ip netns add {b} && ip link add v{a} netns {a} type veth peer name v{b} netns {b} \
             && ip -n {a} addr add 10.77.0.1/24 dev v{a} && ip -n {b} addr add 10.77.0.2/24 dev v{b} \
             && ip -n {a} link set v{a} up && ip -n {b} link set v{b} up && ip -n {a} link set lo up && ip -n {b} link set lo up"
        );
        let made = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            Group::Namespaces.skip(format!("no network namespaces here: {}", why.trim()));
            return None;
        }
        Some(hosts)
    }

    fn launch(&self, bench: &Bench, host: usize, flags: &str, command: &str) -> Launched {
        let line = format!(
            "launch --nnodes 2 --node_rank {host} --rdzv_endpoint 10.77.0.1:29411 {flags} -- {command}"
        );
        let inner = bench.command(&line).process();
        let mut outer = std::process::Command::new("ip");
        outer
            .args(["netns", "exec", &self.names[host]])
            .arg(inner.get_program())
            .args(inner.get_args());
        outer
            .env("XTRAIN_RDZV_SECRET", "correct horse")
            .current_dir(inner.get_current_dir().unwrap());
        outer.envs(
            inner
                .get_envs()
                .filter_map(|(key, value)| Some((key, value?))),
        );
        start(outer)
    }

    fn cut(&self) {
        let [a, _] = &self.names;
        let status = std::process::Command::new("ip")
            .args(["-n", a, "link", "set", &format!("v{a}"), "down"])
            .status()
            .unwrap();
        assert!(status.success());
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = std::process::Command::new("ip")
                .args(["netns", "del", name])
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// Two machines with their own addresses: a run across them gives the numbers of one machine; when
/// the cable is cut, both sides say so, and the checkpoint that was saved goes on.
#[test]
fn two_hosts_train_together_until_the_link_is_cut() {
    let Some(bench) = bench() else { return };
    let Some(hosts) = TwoHosts::new() else { return };
    let command = train(GPT2, 2, "--save_strategy no --output_dir across");
    let runs = [0, 1].map(|host| hosts.launch(&bench, host, "", &command));
    for run in runs {
        run.finish().succeeded();
    }
    let same = train(GPT2, 2, "--save_strategy no --output_dir here");
    Launched::of(&bench, &format!("launch --nproc_per_node 2 -- {same}"))
        .finish()
        .succeeded();
    assert!(
        bench.bytes("across/model.safetensors") == bench.bytes("here/model.safetensors"),
        "two hosts, other weights"
    );

    let endless = train(
        GPT2,
        2,
        "--max_steps 100000 --save_strategy steps --save_steps 5 --save_total_limit 3 --output_dir cut",
    );
    let [mut first, second] =
        [0, 1].map(|host| hosts.launch(&bench, host, "--heartbeat_timeout 10", &endless));
    first.wait_for(&["[rank 0] {'loss'"]);
    for _ in 0..10 {
        first.wait_for(&["[rank 0] {'loss'"]);
    }
    hosts.cut();
    let (first, second) = (first.finish(), second.finish());
    assert_eq!(
        (first.code, second.code),
        (Some(1), Some(1)),
        "{}\n{}",
        first.stdout,
        second.stdout
    );
    assert!(
        first
            .stdout
            .contains("error: no heartbeat from node 1 for 10 s"),
        "{}",
        first.stdout
    );
    assert!(
        second
            .stdout
            .contains("the connection to the rendezvous at 10.77.0.1:29411 was lost"),
        "{}",
        second.stdout
    );
    let saved = |dir: PathBuf| {
        fs::read_dir(dir)
            .unwrap()
            .flatten()
            .any(|e| e.file_name().to_string_lossy().starts_with("checkpoint-"))
    };
    assert!(saved(bench.path("cut")), "{}", first.stdout);
    let go_on = train(
        GPT2,
        2,
        "--max_steps 100000 --output_dir cut --resume_from_checkpoint",
    );
    let mut run = Launched::of(&bench, &format!("launch --nproc_per_node 2 -- {go_on}"));
    run.wait_for(&["[rank 0] resuming from", "checkpoint-"]);
    run.wait_for(&["[rank 0] {'loss'"]);
    let _ = run.child.kill();
    let _ = run.child.wait();
}
