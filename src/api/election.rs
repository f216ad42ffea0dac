//! The service for elections: stand, resign, observe.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use crate::coordination::lock::contract::{Event, Leader};
use crate::elasticjob::field_error::FieldError;
use crate::extension::lock::{LockPaths, Mode, VALUE_BYTES_MAX};
use crate::listen::caller::Caller;
use crate::proto;
use crate::proto::campaign_response::Event as Message;
use crate::proto::election_service_server::ElectionService;
use crate::runner::lock::registry::{Hold, Locks, Outlet};
use crate::runner::shared::Shared;
use crate::tree::Path;

use super::convert::{InvalidRequest, check_application_id};
use super::lock::{Kind, loss_reason, observe, read_lock};
use super::{event, names, status};

/// The service.
#[derive(Clone)]
pub struct ElectionCalls {
    locks: Locks,
}

impl ElectionCalls {
    /// The service for these elections.
    pub fn new(locks: Locks) -> Self {
        Self { locks }
    }

    fn read_campaign(&self, request: proto::CampaignRequest) -> Result<Hold, InvalidRequest> {
        let mut errors = Vec::new();
        let election = read_lock(&self.locks, Kind::Election, request.election, &mut errors);
        let (value, application_id) = (request.value, request.application_id);
        let stands_again = !request.ends_when_lost;
        if value.len() > VALUE_BYTES_MAX {
            errors.push(FieldError::new("value", &value, "at most 4096 bytes"));
        }
        check_application_id(&application_id, &mut errors);
        match election {
            Some((lock, is_foreign)) if errors.is_empty() => {
                let (mode, data) = (Mode::Candidate, Some(value));
                Ok(Hold {
                    lock,
                    is_foreign,
                    mode,
                    permits: 0,
                    lock_delay: Duration::ZERO,
                    wait: None,
                    hold_max: None,
                    data,
                    stands_again,
                    application_id,
                    is_of_item: false,
                })
            }
            _ => Err(InvalidRequest(errors)),
        }
    }

    fn read_election(&self, given: Option<proto::LockId>) -> Result<LockPaths, Status> {
        let mut errors = Vec::new();
        let election = read_lock(&self.locks, Kind::Election, given, &mut errors);
        election.map(|(election, _)| election).ok_or_else(|| InvalidRequest(errors).to_status())
    }
}

#[tonic::async_trait]
impl ElectionService for ElectionCalls {
    type CampaignStream = CampaignEvents;
    type ObserveStream = Pin<Box<dyn Stream<Item = Result<proto::ObserveResponse, Status>> + Send>>;

    async fn campaign(
        &self,
        request: Request<proto::CampaignRequest>,
    ) -> Result<Response<Self::CampaignStream>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        names::check_lock(&caller, request.election.as_ref())?;
        let hold = self.read_campaign(request).map_err(|invalid| invalid.to_status())?;
        let path = hold.lock.lock().clone();
        let (campaign_id, outlet) = self.locks.hold(hold).map_err(|error| status::of_hold(&error))?;
        let shared = self.locks.shared().clone();
        let campaign_id = Some(campaign_id);
        Ok(Response::new(CampaignEvents { campaign_id, path, outlet, shared, ended: false }))
    }

    async fn resign(
        &self,
        request: Request<proto::ResignRequest>,
    ) -> Result<Response<proto::ResignResponse>, Status> {
        let proto::ResignRequest { campaign_id, successor } = request.into_inner();
        let successor = Some(successor.as_str()).filter(|successor| !successor.is_empty());
        let resigned = self.locks.resign(&campaign_id, successor).await;
        resigned.map_err(|error| status::of_resign(&error))?;
        Ok(Response::new(proto::ResignResponse {}))
    }

    async fn observe(
        &self,
        request: Request<proto::ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        names::check_lock(&caller, request.election.as_ref())?;
        let election = self.read_election(request.election)?;
        let mut term = 0;
        let states = observe(&self.locks, &election)?.filter_map(move |(state, stale_reason)| {
            let leader = state.leader().0.map(election_leader);
            let newer = leader.as_ref().map_or(term, |leader| leader.term);
            if newer < term {
                // The server of a new connection shows an earlier moment.
                return None;
            }
            term = newer;
            let candidates = state.candidates().into_iter().map(election_leader).collect();
            Some(Ok(proto::ObserveResponse { leader, candidates, stale_reason }))
        });
        Ok(Response::new(Box::pin(states)))
    }
}

/// The stream of a campaign. Dropping it ends the campaign.
pub struct CampaignEvents {
    /// Taken by the first event.
    campaign_id: Option<String>,
    path: Path,
    outlet: Outlet,
    shared: Shared,
    ended: bool,
}

impl Stream for CampaignEvents {
    type Item = Result<proto::CampaignResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(campaign_id) = self.campaign_id.take() {
            let started = proto::CampaignStarted { campaign_id, path: self.path.to_string() };
            let event = Some(Message::Started(started));
            return Poll::Ready(Some(Ok(proto::CampaignResponse { event })));
        }
        while let Some(received) = ready!(self.outlet.events.poll_recv(context)) {
            if let Some(event) = message(received, &self.shared) {
                return Poll::Ready(Some(Ok(proto::CampaignResponse { event: Some(event) })));
            }
        }
        self.ended = true;
        let end = self.outlet.end.borrow().clone();
        Poll::Ready(status::of_hold_end(&self.path, end.as_ref()).map(Err))
    }
}

fn message(event: Event, shared: &Shared) -> Option<Message> {
    let clock = &shared.clock;
    let lease = |end| event::lock_lease(end, clock);
    Some(match event {
        Event::Waiting { position, .. } => {
            let position = u32::try_from(position).unwrap_or(u32::MAX);
            Message::Following(proto::Following { position, reason: String::new() })
        }
        Event::NoAnswer => {
            let reason = event::no_registry(&shared.trouble.borrow().trouble);
            Message::Following(proto::Following { position: 0, reason })
        }
        Event::Acquired { token, path, lease_end } => Message::Leading(proto::Leading {
            term: token.0,
            node_path: path.to_string(),
            lease: Some(lease(lease_end)),
        }),
        Event::LeaseRenewed { lease_end } => Message::LeaseRenewed(lease(Some(lease_end))),
        Event::Suspended { lease_end } => Message::Suspended(lease(lease_end)),
        Event::Resumed { lease_end } => Message::Resumed(lease(lease_end)),
        Event::Draining { deadline } => Message::Draining(event::draining(deadline, clock.now())),
        Event::LeaderChanged(now) => {
            Message::LeaderChanged(proto::LeaderChanged { leader: now.map(election_leader) })
        }
        Event::Lost(reason) => Message::Lost(proto::LeadershipLost { reason: loss_reason(reason).into() }),
        Event::Released => Message::Resigned(proto::Resigned {}),
        // Sidecars write no revocation into a leader's node. Its data is the value.
        Event::RevocationRequested => return None,
    })
}

fn election_leader(leader: Leader) -> proto::ElectionLeader {
    proto::ElectionLeader { value: leader.value, term: leader.term.0, node_name: leader.name }
}
