//! Sidekeeper: a gRPC coordination sidecar that speaks ElasticJob's ZooKeeper protocol.

pub mod api;
pub mod bundle;
pub mod cli;
pub mod codec;
pub mod config;
pub mod coordination;
pub mod credential_file;
pub mod crypto;
pub mod dump;
pub mod elasticjob;
pub mod excerpt;
pub mod extension;
pub mod findings;
pub mod http;
pub mod job;
pub mod job_files;
pub mod listen;
pub mod metrics;
pub mod mutants;
pub mod pem;
pub mod private;
pub mod quartz;
pub mod reason;
pub mod registry;
pub mod runner;
mod runtime_folder;
pub mod sidecar;
pub mod telemetry;
pub mod tree;

/// The code generated from `proto/sidekeeper/v1`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::restriction,
    clippy::disallowed_types,
    unreachable_pub,
    unused_qualifications
)]
pub mod proto {
    tonic::include_proto!("sidekeeper.v1");

    /// The encoded descriptor set, for server reflection.
    pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sidekeeper_descriptor.bin"));
}
