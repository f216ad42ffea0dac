//! A sidecar in this process. It has threads of its own, as many as the program has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sidekeeper::registry::Registry;
use sidekeeper::sidecar::Sidecar;
use sidekeeper::tree::Path;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::application;

static STARTED: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Host {
    sidecar: Sidecar,
    runtime: Runtime,
    _folder: TempDir,
}

impl Host {
    pub(crate) fn start(registry: impl Registry) -> Self {
        // A namespace of its own, so that it does not find nodes of another measurement.
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        Self::start_in(registry, Path::root().child(&format!("bench-{number}")))
    }

    /// In a namespace that several sidecars share.
    pub(crate) fn start_in(registry: impl Registry, namespace: Path) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // As many workers as the program has.
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let config = application::config(&folder.path().join("socket"));
        let sidecar = runtime.block_on(Sidecar::start_on(config, namespace, Arc::new(registry)));
        Self { sidecar: sidecar.expect("the sidecar to start"), runtime, _folder: folder }
    }

    pub(crate) fn endpoint(&self) -> String {
        self.sidecar.endpoints().first().cloned().expect("the socket")
    }

    /// Ends the sidecar when the applications have left.
    pub(crate) fn stop(self) {
        let (_hurry, hurried) = watch::channel(false);
        self.runtime.block_on(self.sidecar.drain(hurried));
    }
}

/// A runtime for the application: one thread that the sidecar does not use.
pub(crate) fn application_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}
