//! Where configurations come from: requests, job files, the registry; and what a restart keeps.

use std::fs;

use sidekeeper::proto::JobConfiguration;
use sidekeeper::sidecar::{Sidecar, StartError};

use crate::ground::{App, Event, Ground, Host, config, job, request, request_for};

fn total(app: &App) -> u32 {
    app.attached.configuration.as_ref().unwrap().sharding_total_count
}

#[tokio::test]
async fn the_registry_s_configuration_wins_unless_it_is_to_be_overwritten() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let stored = JobConfiguration { job_parameter: "first".to_owned(), ..job(3) };
    let mut app = host.attach(request(stored)).await;
    app.assigned(&[0, 1, 2]).await;
    drop(app);
    ground.outside.until("nobody", |tree| tree.children("instances").is_empty()).await;
    let before = ground.outside.tree().await.text("config");

    let mut app = host.attach(request(job(5))).await;
    assert_eq!(total(&app), 3);
    app.assigned(&[0, 1, 2]).await;
    assert_eq!(ground.outside.tree().await.text("config"), before);

    // While one with another configuration is attached, and it is told the new one.
    let overwrite = JobConfiguration { overwrite: Some(true), ..job(6) };
    let other = ground.sidecar_with(2, |_| ()).await;
    let mut second = other.attach(request(overwrite)).await;
    assert_eq!(total(&second), 6);
    second.assigned(&[3, 4, 5]).await;
    let of_six = |event: &Event| match event {
        Event::AssignmentChanged(changed) => {
            changed.assignment.clone().filter(|assignment| assignment.sharding_total_count == 6)
        }
        _ => None,
    };
    let kept = app.until("its share of six", of_six).await.items;
    assert_eq!(kept.iter().map(|assigned| assigned.item).collect::<Vec<_>>(), [0, 1, 2]);
    let after = ground.outside.tree().await.text("config").unwrap();
    assert!(after.contains("shardingTotalCount: 6") && !after.contains("first"), "{after}");
}

#[tokio::test]
async fn a_job_file_configures_the_job_of_its_name() {
    let ground = Ground::new().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("orders.yaml"),
        "jobName: orders\nshardingTotalCount: 2\njobParameter: file\n",
    )
    .unwrap();
    let jobs_dir = Some(folder.path().to_owned());
    let host = ground.sidecar_with(1, |config| config.jobs_dir = jobs_dir.clone()).await;
    let mut by_name = host.attach(request(None)).await;
    assert_eq!(by_name.attached.configuration.as_ref().unwrap().job_parameter, "file");
    by_name.assigned(&[0, 1]).await;
    assert!(ground.outside.tree().await.text("config").unwrap().contains("jobParameter: 'file'"));
    drop(by_name);
    ground.outside.until("nobody", |tree| tree.children("instances").is_empty()).await;

    // The registry has it now, and another file changes nothing unless it says so.
    fs::write(folder.path().join("orders.yaml"), "jobName: orders\nshardingTotalCount: 4\n").unwrap();
    let host = ground.sidecar_with(2, |config| config.jobs_dir = jobs_dir.clone()).await;
    let by_name = host.attach(request(None)).await;
    assert_eq!(total(&by_name), 2);
    drop(by_name);
    ground.outside.until("nobody", |tree| tree.children("instances").is_empty()).await;
    let overwriting = "jobName: orders\nshardingTotalCount: 4\noverwrite: true\n";
    fs::write(folder.path().join("orders.yaml"), overwriting).unwrap();
    let host = ground.sidecar_with(3, |config| config.jobs_dir = jobs_dir.clone()).await;
    let mut by_name = host.attach(request(None)).await;
    assert_eq!(total(&by_name), 4);
    by_name.assigned(&[0, 1, 2, 3]).await;
}

#[tokio::test]
async fn a_request_s_own_configuration_goes_before_the_job_file() {
    let ground = Ground::new().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("orders.yaml"), "jobName: orders\nshardingTotalCount: 2\n").unwrap();
    let jobs_dir = Some(folder.path().to_owned());
    let host = ground.sidecar_with(1, |config| config.jobs_dir = jobs_dir).await;
    let app = host.attach(request(job(3))).await;
    assert_eq!(total(&app), 3);
}

#[tokio::test]
async fn job_files_that_cannot_work_keep_the_sidecar_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), "jobName: orders\nshardingTotalCount: 0\n").unwrap();
    fs::write(folder.path().join("b.yaml"), "jobName: payments\nshardingTotalCount: 1\ncron: soon\n")
        .unwrap();
    let mut config = config("files", 1);
    config.jobs_dir = Some(folder.path().to_owned());
    let Err(error) = Sidecar::start(config).await else { panic!("it started") };
    assert!(matches!(error, StartError::JobFiles(_)), "{error:?}");
    let said = error.to_string();
    for text in ["a.yaml: shardingTotalCount: given `0`", "b.yaml: cron: given `soon`"] {
        assert!(said.contains(text), "{said}");
    }
}

#[tokio::test]
async fn a_data_directory_keeps_configurations_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config("kept", 1);
    config.data_dir = Some(folder.path().to_owned());
    let host = Host::of(Sidecar::start(config.clone()).await.unwrap());
    let kept = JobConfiguration { description: "kept".to_owned(), ..job(2) };
    let mut app = host.attach(request_for("orders", kept)).await;
    app.assigned(&[0, 1]).await;
    let generation = app.generation();
    drop(app);
    host.drain().await;

    let host = Host::of(Sidecar::start(config).await.unwrap());
    let mut app = host.attach(request(None)).await;
    assert_eq!(app.attached.configuration.as_ref().unwrap().description, "kept");
    app.assigned(&[0, 1]).await;
    // P3: generations and tokens go on, and do not begin anew.
    assert!(app.generation() > generation, "{} after {generation}", app.generation());
}
