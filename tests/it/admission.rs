//! Admission of clients: API levels and tokens.

use std::fs;

use sidekeeper::config::{self, Flags, Secret, Sources};
use sidekeeper::proto::participant_service_client::ParticipantServiceClient;
use sidekeeper::proto::{AttachRequest, DetachRequest};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

use crate::fleet::{Fleet, RunningSidecar, job, request};

/// The request of a client library with this API level that needs this level of the sidecar.
fn library(level: u32, sidecar_min: u32) -> AttachRequest {
    AttachRequest {
        client: "sidekeeper-test/1.2.3".to_owned(),
        api_level: Some(level),
        sidecar_api_level_min: sidecar_min,
        ..request(job(1))
    }
}

#[track_caller]
fn check(status: &Status, reason: &str, contained: &[&str], metadata: &[(&str, &str)]) {
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    for text in contained {
        assert!(status.message().contains(text), "`{text}` is missing: {status:?}");
    }
    let info = status.get_details_error_info().expect("no details");
    assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason, "sidekeeper"));
    for (key, value) in metadata {
        assert_eq!(info.metadata.get(*key).map(String::as_str), Some(*value), "{key} in {info:?}");
    }
}

#[tokio::test]
async fn the_sidecar_refuses_a_client_of_an_incompatible_api_level() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let version = env!("CARGO_PKG_VERSION");

    let too_old = sidecar.refusal(library(0, 0)).await;
    let text = format!("upgrade the client library to that of sidecar {version} or newer");
    let levels = [("client_api_level", "0"), ("client_api_level_min", "1"), ("sidecar_version", version)];
    check(&too_old, "CLIENT_TOO_OLD", &["sidekeeper-test/1.2.3 is too old", "API level 0", &text], &levels);

    let too_new = sidecar.refusal(library(7, 3)).await;
    let levels = [("client_api_level", "7"), ("sidecar_api_level", "2"), ("sidecar_api_level_min", "3")];
    check(&too_new, "SIDECAR_TOO_OLD", &["needs at least 3", "upgrade the sidecar"], &levels);

    // The level is checked first: a newer client may use values that this sidecar takes for invalid.
    let strange = AttachRequest { application_id: "@".to_owned(), ..library(7, 3) };
    check(&sidecar.refusal(strange).await, "SIDECAR_TOO_OLD", &[], &[]);

    // None of them was registered.
    assert_eq!(fleet.nodes.tree().await.names(), Vec::<String>::new());

    // A newer client that accepts this sidecar is served, and so is a client without an API level.
    assert_eq!(sidecar.attach(library(7, 2)).await.attached.api_level, 2);
    assert_eq!(sidecar.attach(request(job(1))).await.attached.api_level, 2);
}

fn secret(text: &str) -> Secret {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("token = '{text}'")).unwrap();
    let none = |_: &str| None;
    let sources = Sources {
        flags: Flags::new(),
        file: Some(file.path().to_owned()),
        environment: &none,
        default_listen: None,
    };
    config::load(&sources).unwrap().config.token.unwrap()
}

async fn attach_with(sidecar: &RunningSidecar, token: Option<&str>) -> Result<(), Status> {
    let channel = sidecar.connect().await;
    let mut call = Request::new(request(job(1)));
    if let Some(token) = token {
        call.metadata_mut().insert("authorization", token.parse().unwrap());
    }
    ParticipantServiceClient::new(channel).attach(call).await.map(|_| ())
}

#[tokio::test]
async fn a_sidecar_with_a_token_refuses_calls_without_it_but_health_checks() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar_with(1, |config| config.token = Some(secret("open-sesame"))).await;
    for wrong in [
        None,
        Some(""),
        Some("Bearer open"),
        Some("open-sesame"),
        Some("Bearer open-sesamf"),
        Some("Basic x"),
    ] {
        let status = attach_with(&sidecar, wrong).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{wrong:?}: {status:?}");
        assert!(status.message().contains("SIDEKEEPER_TOKEN"), "{status:?}");
        assert!(!status.message().contains("sesame"), "{status:?}");
    }
    // Every service requires the token, except for health checks.
    let status =
        ParticipantServiceClient::new(sidecar.connect().await).detach(DetachRequest::default()).await;
    assert_eq!(status.unwrap_err().code(), Code::Unauthenticated);
    let health = HealthClient::new(sidecar.connect().await).check(HealthCheckRequest::default()).await;
    assert!(health.is_ok(), "{health:?}");

    attach_with(&sidecar, Some("Bearer open-sesame")).await.unwrap();
}
