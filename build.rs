//! Compiles the protos with a compiler written in Rust, so no `protoc` has to be installed. Keeps the encoded
//! descriptor set beside the generated code for gRPC server reflection.

use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from("proto");
    let mut protos = Vec::new();
    for entry in fs::read_dir(root.join("sidekeeper/v1"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "proto") {
            protos.push(path);
        }
    }
    protos.sort();
    println!("cargo:rerun-if-changed=proto");

    let descriptors = protox::compile(&protos, [&root])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("sidekeeper_descriptor.bin"), prost_bytes(&descriptors))?;
    tonic_prost_build::configure().codec_path("crate::codec::Codec").compile_fds(descriptors)?;
    Ok(())
}

fn prost_bytes(descriptors: &impl prost::Message) -> Vec<u8> {
    descriptors.encode_to_vec()
}
