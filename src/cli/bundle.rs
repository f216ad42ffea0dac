//! `bundle`: the facts for a person who helps from afar, in one file. Decides where the bytes go.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use futures::stream::{BoxStream, StreamExt as _};
use tonic::Status;

use super::endpoint::{SidecarArgs, authorized, refused};
use super::registry::{Registry, RegistryArgs, failed};
use super::{Failure, USAGE, print, printable};
use crate::api::bundle::{self, Part, Source};
use crate::coordination::admin::doctor::check;
use crate::private;
use crate::proto::collect_bundle_response::Part as ProtoPart;
use crate::proto::diagnostics_service_client::DiagnosticsServiceClient;
use crate::proto::{BundleContents, CollectBundleRequest};
use crate::runner::admin::check_deployment;

/// How long to wait for the whole bundle: thousands of jobs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Args)]
pub(super) struct BundleArgs {
    /// The jobs whose nodes and explanations are collected. [default: all, at most 200]
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    /// The file to write, a `.tar.gz`. It must not exist yet.
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    /// Include the parameters of jobs and items, their descriptions, and messages of failures.
    #[arg(long)]
    include_parameters: bool,
    /// Write here what the pseudonyms in the bundle stand for. Keep this file. It must not exist yet.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    map: Option<PathBuf>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
}

type Parts = BoxStream<'static, Part>;

pub(super) async fn bundle(args: BundleArgs) -> Result<ExitCode, Failure> {
    let request = CollectBundleRequest {
        job_names: args.jobs.clone(),
        include_parameters: args.include_parameters,
        with_pseudonyms: args.map.is_some(),
    };
    let registry = args.registry.open().await?;
    let written = match &registry {
        Some(registry) => match parts_of(registry, &request).await {
            Ok(parts) => write(&args, parts, failed).await,
            Err(failure) => Err(failure),
        },
        None => write(&args, ask(&args, request).await?, refused).await,
    };
    if let Some(registry) = registry {
        registry.session.close().await;
    }
    written.map(|()| ExitCode::SUCCESS)
}

async fn ask(args: &BundleArgs, request: CollectBundleRequest) -> Result<Parts, Failure> {
    let channel = args.sidecar.sidecar()?.connect().await?;
    let mut request = authorized(request)?;
    request.set_timeout(ANSWER_TIMEOUT);
    let answer = DiagnosticsServiceClient::new(channel).collect_bundle(request).await;
    Ok(answer.map_err(|status| refused(&status))?.into_inner().boxed())
}

/// The parts that need no sidecar.
async fn parts_of(registry: &Registry, request: &CollectBundleRequest) -> Result<Parts, Failure> {
    let wanted = bundle::read(request).map_err(|invalid| failed(&invalid.to_status()))?;
    let (checked, timeout) = (&*registry.registry, registry.session_timeout);
    let facts = check_deployment::facts_of(checked, registry.namespace(), timeout).await;
    let of_sidecar = ["sidecar", "security"];
    let namespace = registry.namespace();
    let source = Source {
        session: Some(namespace.session.clone()),
        root: namespace.root.clone(),
        clock: namespace.clock.clone(),
        may_see: Arc::new(|_| true),
        settings: registry.settings.clone(),
        checks: check(&facts).into_iter().filter(|check| !of_sidecar.contains(&check.category)).collect(),
        sidecar: None,
    };
    Ok(bundle::stream(source, wanted, ()).boxed())
}

/// Prints what the bundle will have, and writes it. Without the whole bundle there is no file.
async fn write(
    args: &BundleArgs,
    mut parts: Parts,
    failure: impl Fn(&Status) -> Failure,
) -> Result<(), Failure> {
    let mut output = NewFile::create(&args.output)?;
    let mut map = args.map.as_deref().map(NewFile::create).transpose()?;
    let mut bytes = 0;
    while let Some(part) = parts.next().await {
        match part.map_err(|status| failure(&status))?.part {
            Some(ProtoPart::Contents(contents)) => {
                print(in_words(args, &contents).as_bytes())?;
            }
            Some(ProtoPart::Chunk(chunk)) => {
                bytes += chunk.len();
                output.write(&chunk)?;
            }
            Some(ProtoPart::Pseudonyms(pseudonyms)) => {
                for pseudonym in &pseudonyms.pseudonyms {
                    let line =
                        format!("{}\t{}\n", printable(&pseudonym.pseudonym), printable(&pseudonym.name));
                    map.as_mut().map_or(Ok(()), |map| map.write(line.as_bytes()))?;
                }
            }
            None => {}
        }
    }
    output.keep()?;
    map.map_or(Ok(()), NewFile::keep)?;
    print(format!("written  {}, {bytes} bytes\n", args.output.display()).as_bytes())?;
    Ok(())
}

fn in_words(args: &BundleArgs, contents: &BundleContents) -> String {
    let mut text = "the bundle will have:\n".to_owned();
    let width = contents.files.iter().map(|file| file.name.len()).max().unwrap_or_default();
    for file in &contents.files {
        text.push_str(&format!("  {:<width$}  {}\n", printable(&file.name), printable(&file.about)));
    }
    let parameters = if args.include_parameters { "with" } else { "without" };
    text.push_str(&format!(
        "pseudonyms in place of addresses and names; {parameters} the parameters of jobs; no secrets, no checkpoints\n"
    ));
    text
}

/// A file that vanishes unless it is kept.
struct NewFile<'a> {
    path: &'a Path,
    file: File,
    is_kept: bool,
}

impl<'a> NewFile<'a> {
    fn create(path: &'a Path) -> Result<Self, Failure> {
        let file = private::file().write(true).create_new(true).open(path).map_err(|error| {
            let shown = path.display();
            if error.kind() == ErrorKind::AlreadyExists {
                let error = anyhow!("{shown} exists already; name another file, or delete it");
                return Failure { code: USAGE, error };
            }
            anyhow!(error).context(format!("cannot write {shown}")).into()
        })?;
        Ok(Self { path, file, is_kept: false })
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(bytes).with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn keep(mut self) -> anyhow::Result<()> {
        self.file.sync_all().with_context(|| format!("cannot write {}", self.path.display()))?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(self.path);
        }
    }
}
