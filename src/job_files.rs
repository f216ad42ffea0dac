//! Job configurations from a directory of files, one document each, with ElasticJob's keys. Shell: it reads files.
//!
//! Absent keys have the defaults of ElasticJob's builder. The other rules are those for requests. All files
//! are read before anything is reported, so that one round of corrections is enough.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::elasticjob::config_yaml::{self, ConfigProblem};
use crate::elasticjob::validate::{Checks, DOCUMENT_BYTES_MAX, validate};
use crate::extension::strategy;
use crate::job::{JobConfiguration, JobName};

/// Files in one directory: far more jobs than one process serves.
const FILES_MAX: usize = 10_000;

/// One error in one file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", .file.display())]
pub struct JobFileError {
    /// The file, or the directory itself.
    pub file: PathBuf,
    /// The key, the given value and the allowed values.
    pub reason: String,
}

/// All errors of a directory, by file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct JobFilesError(pub Vec<JobFileError>);

/// Reads all `*.yaml` and `*.yml` files directly in `directory`. Other and hidden files are ignored.
///
/// `jobShardingStrategyType` may be `CONSISTENT_HASH`; it moves to `props`.
pub fn load(
    directory: &Path,
    checks: Checks<'_>,
) -> Result<BTreeMap<JobName, JobConfiguration>, JobFilesError> {
    let files = list(directory).map_err(|error| {
        let reason = format!("cannot be listed: {error}; allowed: a readable directory");
        JobFilesError(vec![JobFileError { file: directory.to_owned(), reason }])
    })?;
    let mut jobs: BTreeMap<JobName, (PathBuf, JobConfiguration)> = BTreeMap::new();
    let mut errors = Vec::new();
    for file in files {
        match read(&file, checks) {
            Err(reasons) => {
                let of_file = |reason| JobFileError { file: file.clone(), reason };
                errors.extend(reasons.into_iter().map(of_file));
            }
            Ok(configuration) => {
                let name = configuration.job_name.clone();
                if let Some((other, _)) = jobs.get(&name) {
                    let other = other.display();
                    let reason =
                        format!("jobName: given `{name}`; allowed: a name that {other} does not use already");
                    errors.push(JobFileError { file, reason });
                } else {
                    jobs.insert(name, (file, configuration));
                }
            }
        }
    }
    if errors.is_empty() {
        Ok(jobs.into_iter().map(|(name, (_, configuration))| (name, configuration)).collect())
    } else {
        Err(JobFilesError(errors))
    }
}

/// The files that a path stands for: itself, or the `*.yaml` and `*.yml` files directly in a directory, at least one.
pub fn expand(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files = list(path)?;
    if files.is_empty() {
        return Err(io::Error::other("there is no `*.yaml` or `*.yml` file in this directory"));
    }
    Ok(files)
}

/// The files in the order of their names.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let named = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if hidden || !named {
            continue;
        }
        if files.len() == FILES_MAX {
            return Err(io::Error::other(format!("there are more than {FILES_MAX} files")));
        }
        files.push(path);
    }
    files.sort();
    Ok(files)
}

/// Reads one file. The errors are one sentence each.
pub fn read(file: &Path, checks: Checks<'_>) -> Result<JobConfiguration, Vec<String>> {
    let data = read_bounded(file).map_err(|error| vec![format!("cannot be read: {error}")])?;
    let parsed = config_yaml::parse_local(&data).map_err(|problem| match problem {
        ConfigProblem::Syntax(error) => vec![format!("is not a YAML document: {error}")],
        ConfigProblem::Fields(errors) => errors.iter().map(ToString::to_string).collect(),
    })?;
    let mut configuration = parsed.configuration;
    strategy::move_own_strategy(&mut configuration);
    let mut reasons = parsed.problems;
    reasons.extend(validate(&configuration, checks).iter().map(ToString::to_string));
    if reasons.is_empty() { Ok(configuration) } else { Err(reasons) }
}

/// Reads a regular file, or a link to one, because mounted configurations are links. Never reads more than
/// the allowed size.
fn read_bounded(file: &Path) -> io::Result<Vec<u8>> {
    // Checked before opening: opening a pipe waits for its writer.
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let limit = u64::try_from(DOCUMENT_BYTES_MAX).unwrap_or(u64::MAX);
    let mut data = Vec::new();
    fs::File::open(file)?.take(limit + 1).read_to_end(&mut data)?;
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(io::Error::other(format!("it is larger than the allowed {DOCUMENT_BYTES_MAX} bytes")));
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const CHECKS: Checks<'_> = Checks {
        cron: &|text| if text == "bad" { Err("it has one field".to_owned()) } else { Ok(()) },
        time_zone: &|_| Ok(()),
        property: &crate::extension::properties::check,
    };

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    fn refused(directory: &tempfile::TempDir) -> String {
        let error = load(directory.path(), CHECKS).unwrap_err().to_string();
        error.replace(&format!("{}/", directory.path().display()), "") + "\n"
    }

    #[test]
    fn loads_all_documents_with_the_builder_s_defaults() {
        let directory = directory(&[
            ("a.yaml", "jobName: orderSync\nshardingTotalCount: 2\n"),
            ("b.yml", "{jobName: cleanup, shardingTotalCount: 1, jobShardingStrategyType: consistent_hash}"),
            ("notes.txt", "not a job"),
            (".hidden.yaml", "not a job"),
        ]);
        let jobs = load(directory.path(), CHECKS).unwrap();
        let names: Vec<&str> = jobs.keys().map(JobName::as_str).collect();
        assert_eq!(names, ["cleanup", "orderSync"]);
        let order_sync = JobName::parse("orderSync").unwrap();
        assert_eq!(jobs[&order_sync], JobConfiguration::new(order_sync.clone(), 2));
        let cleanup = &jobs[&JobName::parse("cleanup").unwrap()];
        assert_eq!(cleanup.props["sidekeeper.sharding-strategy"], "CONSISTENT_HASH");
    }

    #[cfg(unix)]
    #[test]
    fn follows_links_but_reads_only_files() {
        let directory = directory(&[("data", "jobName: a\nshardingTotalCount: 2\n")]);
        std::os::unix::fs::symlink("data", directory.path().join("a.yaml")).unwrap();
        assert_eq!(load(directory.path(), CHECKS).unwrap().len(), 1);
        fs::create_dir(directory.path().join("b.yaml")).unwrap();
        expect![[r#"
            b.yaml: cannot be read: it is not a file
        "#]]
        .assert_eq(&refused(&directory));
    }

    #[test]
    fn reports_all_errors_of_all_files() {
        let large = "#".repeat(DOCUMENT_BYTES_MAX + 1);
        let directory = directory(&[
            ("a.yaml", "jobName: one\nshardingTotalCount: 2\n"),
            ("b.yaml", "jobName: one\nshardingTotalCount: 2\n"),
            ("c.yaml", "jobName: a/b\nmisfire: maybe\n"),
            (
                "d.yaml",
                "jobName: two\nshardingTotalCount: 2\njobClass: x\ncron: bad\nshardingItemParameters: 2=a\n",
            ),
            ("e.yaml", "jobName: [\n"),
            ("f.yaml", &large),
        ]);
        expect![[r#"
            b.yaml: jobName: given `one`; allowed: a name that a.yaml does not use already
            c.yaml: jobName: given `a/b`; allowed: a name that is a node's name in ZooKeeper, but this one holds a `/`, which separates nodes
            c.yaml: shardingTotalCount: given `nothing`; allowed: an integer from 1 to 10000; it is required
            c.yaml: misfire: given `maybe`; allowed: `true` or `false`
            d.yaml: the key `jobClass` is unknown; Java peers throw at each read of this configuration; remove it
            d.yaml: cron: given `bad`; allowed: a Quartz cron expression of six or seven fields; it has one field
            d.yaml: shardingItemParameters: given `2=a`; allowed: parameters of the items 0 to 1 only, not of 2
            e.yaml: is not a YAML document: line 2, column 1: while parsing a node, did not find expected node content
            f.yaml: cannot be read: it is larger than the allowed 524288 bytes
        "#]].assert_eq(&refused(&directory));
    }

    #[test]
    fn names_a_missing_directory() {
        let directory = directory(&[]);
        assert_eq!(load(directory.path(), CHECKS), Ok(BTreeMap::new()));
        let missing = directory.path().join("missing");
        let error = load(&missing, CHECKS).unwrap_err();
        assert_eq!(error.0[0].file, missing);
        assert!(error.to_string().contains("allowed: a readable directory"), "{error}");
    }
}
