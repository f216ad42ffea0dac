//! `backup` and `restore`: the jobs of a namespace in a file.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use futures::stream::iter;
use jiff::Timestamp;
use serde_json::json;

use super::endpoint::{SidecarArgs, authorized, refused};
use super::registry::{RegistryArgs, failed};
use super::switch::confirm;
use super::{Failure, json_line, print, printable};
use crate::api::event::timestamp;
use crate::api::{namespace, status};
use crate::coordination::admin::backup::file::{BYTES_MAX, Backup};
use crate::private;
use crate::proto::namespace_service_client::NamespaceServiceClient;
use crate::proto::{BackupNamespaceRequest, RestoreNamespaceRequest, RestoreNamespaceResponse};
use crate::runner::admin::backup;

/// How long to wait for the answer: longer than the sidecar may wait for its registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(660);
/// The largest accepted answer, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;
/// The most nodes that are shown of each kind.
const SHOWN_MAX: usize = 20;

#[derive(Args)]
pub(super) struct BackupArgs {
    /// The file to make. It must not exist yet. Only its owner may read it, because parameters of jobs may be secret.
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct RestoreArgs {
    /// The file that `backup` has made.
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Only show what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Restore although instances are online, or nodes differ from the backup.
    #[arg(long)]
    force: bool,
    /// Fires up to this instant (RFC 3339, or `now`) count as executed, also those after the backup. Otherwise only the fires that were executed
    /// before the backup do.
    #[arg(long, value_name = "TIME", value_parser = instant)]
    settled_until: Option<Timestamp>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

fn instant(text: &str) -> Result<Timestamp, String> {
    match text {
        "now" => Ok(crate::runner::clock::Clock::start().now().wall),
        _ => text.parse().map_err(|error| format!("{error}; allowed: `2026-11-28T03:00:00Z` or `now`")),
    }
}

pub(super) async fn backup(args: BackupArgs) -> Result<ExitCode, Failure> {
    // Before the work, so that it is not in vain.
    if args.output.symlink_metadata().is_ok() {
        return Err(anyhow!("{} exists already; give another name", args.output.display()).into());
    }
    let file = match args.registry.open().await? {
        Some(registry) => {
            let saved = backup::save_in(registry.namespace()).await;
            registry.session.close().await;
            saved.map_err(|error| failed(&status::of_backup(&error)))?
        }
        None => receive(&args.sidecar).await?,
    };
    let saved = Backup::read(&file).context("the backup did not arrive as a whole; run the command again")?;
    write(&args.output, &file)?;
    let (jobs, nodes) = (saved.jobs(), saved.nodes.len());
    let text = match args.json {
        true => json_line(&json!({
            "jobs": jobs, "nodes": nodes, "bytes": file.len(), "created_at": saved.header.created_at,
        })),
        false => {
            format!("saved  {jobs} jobs, {nodes} nodes, to {}\n", printable(&args.output.to_string_lossy()))
        }
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn receive(sidecar: &SidecarArgs) -> Result<Vec<u8>, Failure> {
    let channel = sidecar.sidecar()?.connect().await?;
    let mut client = NamespaceServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut request = authorized(BackupNamespaceRequest {})?;
    request.set_timeout(ANSWER_TIMEOUT);
    let answer = client.backup_namespace(request).await.map_err(|status| refused(&status))?;
    let (mut chunks, mut file) = (answer.into_inner(), Vec::new());
    while let Some(message) = chunks.message().await.map_err(|status| refused(&status))? {
        if file.len().saturating_add(message.chunk.len()) > BYTES_MAX {
            return Err(anyhow!("the sidecar sends more than {BYTES_MAX} bytes").into());
        }
        file.extend_from_slice(&message.chunk);
    }
    Ok(file)
}

/// Writes a file that only its owner may read. Leaves no part of it behind.
fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut file = private::file()
        .write(true)
        .create_new(true)
        .open(path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    if written.is_err() {
        // The error of the write is the one to report.
        let _ = fs::remove_file(path);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

pub(super) async fn restore(args: RestoreArgs) -> Result<ExitCode, Failure> {
    let shown_path = printable(&args.file.to_string_lossy());
    let file = read(&args.file)?;
    let about = Backup::read(&file).with_context(|| shown_path.clone())?;
    let request = RestoreNamespaceRequest {
        chunk: file,
        validate_only: true,
        force: args.force,
        etag: String::new(),
        settled_until: args.settled_until.map(timestamp),
    };
    let found = call(&args, &request).await?;
    if !args.json || args.dry_run {
        print(show(&found, args.json).as_bytes())?;
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes {
        confirm(&format!(
            "This restores {} jobs of the namespace {} from {}.",
            about.jobs(),
            printable(&about.header.namespace),
            printable(&about.header.created_at)
        ))?;
    }
    // The etag of what was shown: if the namespace has changed since, nothing is done.
    let request = RestoreNamespaceRequest { validate_only: false, etag: found.etag, ..request };
    let done = call(&args, &request).await?;
    let text = match args.json {
        true => show(&done, true),
        false => {
            let changed = done.changed_paths.len().saturating_add(done.removed_paths.len());
            let mut text = format!(
                "restored  {} jobs: {} nodes created, {changed} changed\n",
                done.jobs, done.created_nodes
            );
            if done.tokens_may_fall {
                text.push_str(
                    "fencing tokens may be lower than before: see `sidekeeper doctor`  TOKENS_MAY_FALL\n",
                );
            }
            text
        }
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let context = || format!("cannot read {}", path.display());
    let file = fs::File::open(path).with_context(context)?;
    let mut content = Vec::new();
    let most = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    file.take(most).read_to_end(&mut content).with_context(context)?;
    Ok(content)
}

async fn call(
    args: &RestoreArgs,
    request: &RestoreNamespaceRequest,
) -> Result<RestoreNamespaceResponse, Failure> {
    if let Some(registry) = args.registry.open().await? {
        let restored = async {
            let wish = namespace::wish(request).map_err(|status| failed(&status))?;
            let outcome = backup::restore_in(registry.namespace(), &wish).await;
            let outcome = outcome.map_err(|error| failed(&status::of_backup(&error)))?;
            Ok(namespace::to_message(&wish.backup, &outcome))
        };
        let restored = restored.await;
        registry.session.close().await;
        return restored;
    }
    let channel = args.sidecar.sidecar()?.connect().await?;
    let mut client = NamespaceServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let first = RestoreNamespaceRequest { chunk: Vec::new(), ..request.clone() };
    let chunks: Vec<_> = request.chunk.chunks(namespace::CHUNK_BYTES).map(<[u8]>::to_vec).collect();
    let rest = chunks
        .into_iter()
        .map(|chunk| RestoreNamespaceRequest { chunk, ..RestoreNamespaceRequest::default() });
    let mut message = authorized(iter(std::iter::once(first).chain(rest)))?;
    message.set_timeout(ANSWER_TIMEOUT);
    Ok(client.restore_namespace(message).await.map_err(|status| refused(&status))?.into_inner())
}

fn show(found: &RestoreNamespaceResponse, as_json: bool) -> String {
    if as_json {
        return json_line(&json!({
            "etag": found.etag,
            "created_at": found.created_at,
            "namespace": found.namespace,
            "jobs": found.jobs,
            "created_nodes": found.created_nodes,
            "kept_nodes": found.kept_nodes,
            "changed_paths": found.changed_paths,
            "removed_paths": found.removed_paths,
            "online_job_names": found.online_job_names,
            "other_job_names": found.other_job_names,
            "tokens_may_fall": found.tokens_may_fall,
        }));
    }
    let mut text = format!(
        "backup of {} from {}: {} jobs, {} nodes to create, {} stay as they are\n",
        printable(&found.namespace),
        printable(&found.created_at),
        found.jobs,
        found.created_nodes,
        found.kept_nodes
    );
    let mut list = |what: &str, names: &[String]| {
        for name in names.iter().take(SHOWN_MAX) {
            text.push_str(&format!("  {what}  {}\n", printable(name)));
        }
        if names.len() > SHOWN_MAX {
            text.push_str(&format!("  {what}  and {} more\n", names.len().saturating_sub(SHOWN_MAX)));
        }
    };
    list("differs, needs --force", &found.changed_paths);
    list("not in the backup, needs --force", &found.removed_paths);
    list("has instances online, needs --force", &found.online_job_names);
    list("not in the backup, stays", &found.other_job_names);
    if found.tokens_may_fall {
        text.push_str("  fencing tokens may be lower than before (docs/operations.md#tokens_may_fall)\n");
    }
    text
}
