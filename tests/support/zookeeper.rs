//! A ZooKeeper server of one node, as a plain JVM on a free port of this machine.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a server may take to start. On an idle machine it takes half a second.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Runs Java until this process closes the launcher's standard input, or ends.
const LAUNCHER: &str = r#"java "$@" </dev/null & echo $! >pid; read -r _; kill -9 $!; wait $!"#;

pub struct Server {
    folder: TempDir,
    port: u16,
    settings: String,
    java: Vec<String>,
    running: Option<Running>,
}

struct Running {
    launcher: Child,
    java: i32,
}

impl Server {
    /// Starts a server with an empty tree.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// The same, with more lines of configuration.
    pub fn start_with(settings: &str) -> Self {
        Self::start_in(tempfile::tempdir().expect("a temporary folder"), settings, Vec::new())
    }

    /// The same, in a folder that has files already, and with options for Java.
    pub fn start_in(folder: TempDir, settings: &str, java: Vec<String>) -> Self {
        let mut server =
            Self { folder, port: free_port(), settings: settings.to_owned(), java, running: None };
        server.start_again();
        server
    }

    /// The server that all tests of this process share; each takes a node of its own. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the server. Its data stays.
    pub fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            drop(running.launcher.stdin.take());
            running.launcher.wait().expect("the launcher to end");
        }
    }

    /// Kills the server and removes its data.
    pub fn forget(&mut self) {
        self.stop();
        fs::remove_dir_all(self.folder.path().join("data")).expect("to remove the data");
    }

    /// Starts the stopped server on the same port with the same data.
    pub fn start_again(&mut self) {
        self.stop();
        let folder = self.folder.path();
        let config = format!(
            "tickTime=500\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\nmaxClientCnxns=0\nminSessionTimeout=1000\nmaxSessionTimeout=60000\n\
             preAllocSize=64\n{}\n",
            folder.join("data").display(),
            self.port,
            self.settings,
        );
        fs::write(folder.join("zoo.cfg"), config).expect("to write the configuration");
        let log = fs::File::create(folder.join("log")).expect("to create the log");
        let mut launcher = Command::new("bash")
            .args(["-c", LAUNCHER, "zookeeper"])
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-Dzookeeper.extendedTypesEnabled=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"])
            .args(&self.java)
            .args(["-Dznode.container.checkIntervalMs=200", "-cp"])
            .arg(jars().join("*"))
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(folder.join("zoo.cfg"))
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("to run bash and java; `make tools` installs what is missing");
        let started = Instant::now();
        while !self.command("srvr").is_some_and(|answer| answer.contains("Mode:")) {
            if started.elapsed() > START_LIMIT {
                let _ = launcher.kill();
                panic!("ZooKeeper did not start; its log:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let java = fs::read_to_string(folder.join("pid")).expect("the process id");
        self.running = Some(Running { launcher, java: java.trim().parse().expect("a process id") });
    }

    /// Stops the server's process without ending it: connections stay open and silent.
    pub fn freeze(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
    }

    /// Lets a frozen server run on.
    pub fn thaw(&self) {
        self.signal(nix::sys::signal::Signal::SIGCONT);
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.process()), signal)
            .expect("to signal the server");
    }

    /// The id of the server's process.
    pub fn process(&self) -> i32 {
        self.running.as_ref().expect("a running server").java
    }

    /// The folder with its logs of transactions and its snapshots.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data/version-2")
    }

    /// Sends a four-letter word.
    pub fn command(&self, word: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The ports of this process's servers. Systems do not give them to outgoing connections, and the Python suites have
/// others (`processes.py`): a port stays free while its server starts, or is stopped.
const PORTS: Range<u16> = 30_000..32_768;

/// A port that this process has not had before.
pub fn free_port() -> u16 {
    /// How many ports this process has tried.
    static TRIED: AtomicUsize = AtomicUsize::new(0);
    // Programs that run side by side begin at different ports.
    let first = usize::try_from(std::process::id()).expect("a process id").wrapping_mul(101);
    loop {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        assert!(tried < PORTS.len(), "no port of {PORTS:?} is free");
        let port = PORTS.clone().nth(first.wrapping_add(tried) % PORTS.len()).expect("a port of the range");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The folder with the server's jars.
fn jars() -> PathBuf {
    let folder = std::env::var_os("SIDEKEEPER_ZOOKEEPER_LIB")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".tools/zookeeper"), PathBuf::from);
    let found = fs::read_dir(&folder).is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| entry.path().extension().is_some_and(|end| end == "jar")))
    });
    assert!(
        found,
        "no ZooKeeper jars in {}: run `make tools` (or tests/support/zookeeper/install.sh), \
         or name their folder in SIDEKEEPER_ZOOKEEPER_LIB",
        folder.display()
    );
    folder
}
