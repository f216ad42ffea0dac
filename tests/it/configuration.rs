//! Sources of a configuration (requests, job files, the registry), and configurations after a restart.

use std::fs;

use sidekeeper::proto::JobConfiguration;
use sidekeeper::sidecar::{Sidecar, StartError};

use crate::fleet::{App, Event, Fleet, RunningSidecar, config, job, request, request_for};

fn total(app: &App) -> u32 {
    app.attached.configuration.as_ref().unwrap().sharding_total_count
}

#[tokio::test]
async fn the_registry_s_configuration_wins_unless_the_request_overwrites_it() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let stored = JobConfiguration { job_parameter: "first".to_owned(), ..job(3) };
    let mut app = sidecar.attach(request(stored)).await;
    app.assigned(&[0, 1, 2]).await;
    drop(app);
    fleet.nodes.until("all instances to be offline", |tree| tree.children("instances").is_empty()).await;
    let before = fleet.nodes.tree().await.text("config");

    let mut app = sidecar.attach(request(job(5))).await;
    assert_eq!(total(&app), 3);
    app.assigned(&[0, 1, 2]).await;
    assert_eq!(fleet.nodes.tree().await.text("config"), before);

    // An application with the old configuration is attached meanwhile, and is notified of the new one.
    let overwrite = JobConfiguration { overwrite: Some(true), ..job(6) };
    let other = fleet.sidecar_with(2, |_| ()).await;
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
    let after = fleet.nodes.tree().await.text("config").unwrap();
    assert!(after.contains("shardingTotalCount: 6") && !after.contains("first"), "{after}");
}

#[tokio::test]
async fn a_job_file_configures_the_job_of_its_name() {
    let fleet = Fleet::new().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("orders.yaml"),
        "jobName: orders\nshardingTotalCount: 2\njobParameter: file\n",
    )
    .unwrap();
    let jobs_dir = Some(folder.path().to_owned());
    let sidecar = fleet.sidecar_with(1, |config| config.jobs_dir = jobs_dir.clone()).await;
    let mut by_name = sidecar.attach(request(None)).await;
    assert_eq!(by_name.attached.configuration.as_ref().unwrap().job_parameter, "file");
    by_name.assigned(&[0, 1]).await;
    assert!(fleet.nodes.tree().await.text("config").unwrap().contains("jobParameter: 'file'"));
    drop(by_name);
    fleet.nodes.until("all instances to be offline", |tree| tree.children("instances").is_empty()).await;

    // The registry has a configuration now: another file changes it only with `overwrite`.
    fs::write(folder.path().join("orders.yaml"), "jobName: orders\nshardingTotalCount: 4\n").unwrap();
    let sidecar = fleet.sidecar_with(2, |config| config.jobs_dir = jobs_dir.clone()).await;
    let by_name = sidecar.attach(request(None)).await;
    assert_eq!(total(&by_name), 2);
    drop(by_name);
    fleet.nodes.until("all instances to be offline", |tree| tree.children("instances").is_empty()).await;
    let overwriting = "jobName: orders\nshardingTotalCount: 4\noverwrite: true\n";
    fs::write(folder.path().join("orders.yaml"), overwriting).unwrap();
    let sidecar = fleet.sidecar_with(3, |config| config.jobs_dir = jobs_dir.clone()).await;
    let mut by_name = sidecar.attach(request(None)).await;
    assert_eq!(total(&by_name), 4);
    by_name.assigned(&[0, 1, 2, 3]).await;
}

#[tokio::test]
async fn a_request_s_configuration_wins_over_the_job_file() {
    let fleet = Fleet::new().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("orders.yaml"), "jobName: orders\nshardingTotalCount: 2\n").unwrap();
    let jobs_dir = Some(folder.path().to_owned());
    let sidecar = fleet.sidecar_with(1, |config| config.jobs_dir = jobs_dir).await;
    let app = sidecar.attach(request(job(3))).await;
    assert_eq!(total(&app), 3);
}

#[tokio::test]
async fn invalid_job_files_prevent_the_start_of_the_sidecar() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), "jobName: orders\nshardingTotalCount: 0\n").unwrap();
    fs::write(folder.path().join("b.yaml"), "jobName: payments\nshardingTotalCount: 1\ncron: soon\n")
        .unwrap();
    let mut config = config("files", 1);
    config.jobs_dir = Some(folder.path().to_owned());
    let Err(error) = Sidecar::start(config).await else { panic!("it started") };
    assert!(matches!(error, StartError::JobFiles(_)), "{error:?}");
    let message = error.to_string();
    for text in ["a.yaml: shardingTotalCount: given `0`", "b.yaml: cron: given `soon`"] {
        assert!(message.contains(text), "{message}");
    }
}

#[tokio::test]
async fn a_data_directory_keeps_configurations_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config("kept", 1);
    config.data_dir = Some(folder.path().to_owned());
    let sidecar = RunningSidecar::of(Sidecar::start(config.clone()).await.unwrap());
    let kept = JobConfiguration { description: "kept".to_owned(), ..job(2) };
    let mut app = sidecar.attach(request_for("orders", kept)).await;
    app.assigned(&[0, 1]).await;
    let generation = app.generation();
    drop(app);
    sidecar.drain().await;

    let sidecar = RunningSidecar::of(Sidecar::start(config).await.unwrap());
    let mut app = sidecar.attach(request(None)).await;
    assert_eq!(app.attached.configuration.as_ref().unwrap().description, "kept");
    app.assigned(&[0, 1]).await;
    // P3: generations and tokens grow across restarts.
    assert!(app.generation() > generation, "{} after {generation}", app.generation());
}
