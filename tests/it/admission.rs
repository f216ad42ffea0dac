//! Who gets in: with which token, and in which version.

use std::fs;

use sidekeeper::config::{self, Flags, Secret, Sources};
use sidekeeper::proto::participant_service_client::ParticipantServiceClient;
use sidekeeper::proto::{AttachRequest, DetachRequest};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

use crate::ground::{Ground, Host, job, request};

/// A client library of this level that needs this of the sidecar.
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
async fn client_and_sidecar_know_whether_they_fit() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let version = env!("CARGO_PKG_VERSION");

    let too_old = host.refusal(library(0, 0)).await;
    let text = format!("upgrade the client library to that of sidecar {version} or newer");
    let levels = [("client_api_level", "0"), ("client_api_level_min", "1"), ("sidecar_version", version)];
    check(&too_old, "CLIENT_TOO_OLD", &["sidekeeper-test/1.2.3 is too old", "API level 0", &text], &levels);

    let too_new = host.refusal(library(7, 2)).await;
    let levels = [("client_api_level", "7"), ("sidecar_api_level", "1"), ("sidecar_api_level_min", "2")];
    check(&too_new, "SIDECAR_TOO_OLD", &["needs at least 2", "upgrade the sidecar"], &levels);

    // A field that a newer client has, and that looks wrong to this sidecar, is not what is complained of.
    let strange = AttachRequest { application_id: "@".to_owned(), ..library(7, 2) };
    check(&host.refusal(strange).await, "SIDECAR_TOO_OLD", &[], &[]);

    // Nothing was registered for any of them.
    assert_eq!(ground.outside.tree().await.names(), Vec::<String>::new());

    // A newer client that can do with this sidecar is served, and so is one that says nothing of levels.
    assert_eq!(host.attach(library(7, 1)).await.attached.api_level, 1);
    assert_eq!(host.attach(request(job(1))).await.attached.api_level, 1);
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

async fn attach_with(host: &Host, token: Option<&str>) -> Result<(), Status> {
    let channel = host.connect().await;
    let mut call = Request::new(request(job(1)));
    if let Some(token) = token {
        call.metadata_mut().insert("authorization", token.parse().unwrap());
    }
    ParticipantServiceClient::new(channel).attach(call).await.map(|_| ())
}

#[tokio::test]
async fn with_a_token_nobody_is_served_without_it() {
    let ground = Ground::new().await;
    let host = ground.sidecar_with(1, |config| config.token = Some(secret("open-sesame"))).await;
    for wrong in [
        None,
        Some(""),
        Some("Bearer open"),
        Some("open-sesame"),
        Some("Bearer open-sesamf"),
        Some("Basic x"),
    ] {
        let status = attach_with(&host, wrong).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{wrong:?}: {status:?}");
        assert!(status.message().contains("SIDEKEEPER_TOKEN"), "{status:?}");
        assert!(!status.message().contains("sesame"), "{status:?}");
    }
    // No call of any service gets past it, but for health checks.
    let status = ParticipantServiceClient::new(host.connect().await).detach(DetachRequest::default()).await;
    assert_eq!(status.unwrap_err().code(), Code::Unauthenticated);
    let health = HealthClient::new(host.connect().await).check(HealthCheckRequest::default()).await;
    assert!(health.is_ok(), "{health:?}");

    attach_with(&host, Some("Bearer open-sesame")).await.unwrap();
}
