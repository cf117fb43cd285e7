//! [`Scheduler`]: Ballista's scheduler within this process; [`Client`]: what we ask of one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::config::{BALLISTA_SCHEDULER_MAX_PARTITIONS_PER_TASK, TaskSchedulingPolicy};
use ballista_core::error::BallistaError;
use ballista_core::serde::protobuf::execute_query_params::Query;
use ballista_core::serde::protobuf::execute_query_result::Result as Submitted;
use ballista_core::serde::protobuf::job_status::Status;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpcServer;
use ballista_core::serde::protobuf::{
    CancelJobParams, ExecuteQueryParams, ExecutorStoppedParams, GetJobStatusParams, KeyValuePair,
};
use ballista_core::version::insert_version_header;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::create_scheduler;
use datafusion::common::runtime::SpawnedTask;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::AsExecutionPlan;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpListener;
use tonic::Request;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;

use super::plan::ShardCodec;
use super::{ClusterError, Network};

/// Seconds of silence after which an executor is dead: four of the polls that a busy executor makes.
const EXECUTOR_TIMEOUT: u64 = 20;

/// Seconds between two looks for dead executors.
const EXPIRY: u64 = 5;

/// Seconds for which jobs wait when the last executor has gone.
const NO_EXECUTORS: u64 = 60;

/// The time for which an executor waits for its scheduler.
const CONNECT: Duration = Duration::from_secs(60);

/// The largest answer of a scheduler: an executor gets tasks for all its slots at once, each with the configuration of its
/// session.
const MOST_BYTES: usize = 64 << 20;

/// The pause between two tries to connect.
const PAUSE: Duration = Duration::from_millis(500);

/// Ballista's scheduler. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Scheduler {
    address: SocketAddr,
    task: SpawnedTask<Result<(), tonic::transport::Error>>,
}

impl Scheduler {
    /// Starts a scheduler at an address. Port 0 is a free one.
    ///
    /// # Errors
    /// The address is in use, or is not one of this machine; or the certificates are broken.
    pub(crate) async fn start(bind: SocketAddr, network: &Network) -> Result<Self, ClusterError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| ClusterError::Scheduler {
            action: "start",
            address: bind.to_string(),
            source,
        };
        let of_ballista = |error: BallistaError| failed(error.into());
        let listener = TcpListener::bind(bind).await;
        let listener = listener.map_err(|error| failed(error.into()))?;
        let address = listener
            .local_addr()
            .map_err(|error| failed(error.into()))?;
        let config = SchedulerConfig {
            bind_host: address.ip().to_string(),
            bind_port: address.port(),
            scheduling_policy: TaskSchedulingPolicy::PullStaged,
            task_distribution: TaskDistributionPolicy::RoundRobin,
            executor_timeout_seconds: EXECUTOR_TIMEOUT,
            expire_dead_executor_interval_seconds: EXPIRY,
            no_executors_grace_period_seconds: NO_EXECUTORS,
            override_physical_codec: Some(Arc::new(ShardCodec::default())),
            ..SchedulerConfig::default()
        };
        let cluster = BallistaCluster::new_from_config(&config).await;
        let scheduler = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(
            cluster.map_err(of_ballista)?,
            Arc::new(config),
        );
        // Of Ballista's services it is the only one that we need, and its own server knows no TLS.
        let service = SchedulerGrpcServer::new(scheduler.await.map_err(of_ballista)?);
        let mut server = network.server().map_err(|error| failed(error.into()))?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let task = SpawnedTask::spawn(server.add_service(service).serve_with_incoming(incoming));
        Ok(Self { address, task })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it fails.
    ///
    /// # Errors
    /// Why it failed.
    pub(crate) async fn serve(self) -> Result<(), ClusterError> {
        let Self { address, task } = self;
        let served = task.join_unwind().await;
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| ClusterError::Scheduler {
            action: "run",
            address: address.to_string(),
            source,
        };
        served
            .map_err(|error| failed(error.into()))?
            .map_err(|error| failed(error.into()))
    }
}

/// How a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    /// It waits or runs.
    Runs,
    /// All its tasks have ended.
    Ended,
    /// It failed.
    Failed(String),
    /// The scheduler does not know it: not yet, or not any more.
    Unknown,
}

/// A client of a scheduler. Every call has the deadline that Ballista's configuration gives it.
#[derive(Debug)]
pub(super) struct Client {
    address: String,
    client: SchedulerGrpcClient<Channel>,
}

impl Client {
    /// Connects to the scheduler at `grpc://HOST:PORT`, and waits for one that is about to start.
    ///
    /// # Errors
    /// Nobody answers there for a minute, or it does not admit us.
    pub(super) async fn wait_for(address: &str, network: &Network) -> Result<Self, ClusterError> {
        let until = Instant::now() + CONNECT;
        loop {
            match Self::connect(address, network).await {
                Err(_) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
                connected => return connected,
            }
        }
    }

    /// Connects to the scheduler at `grpc://HOST:PORT`.
    ///
    /// # Errors
    /// Nobody answers there, or it does not admit us.
    pub(super) async fn connect(address: &str, network: &Network) -> Result<Self, ClusterError> {
        let failed = |source| ClusterError::Scheduler {
            action: "reach",
            address: address.to_owned(),
            source: Box::new(source),
        };
        let endpoint = network.endpoint(address).map_err(failed)?;
        let channel = endpoint.connect().await.map_err(failed)?;
        let mut client = Self {
            address: address.to_owned(),
            client: SchedulerGrpcClient::new(channel).max_decoding_message_size(MOST_BYTES),
        };
        // A server that does not admit us says so only to the first request.
        client.job("").await?;
        Ok(client)
    }

    /// What Ballista's executor asks for tasks.
    pub(super) fn into_inner(self) -> SchedulerGrpcClient<Channel> {
        self.client
    }

    fn failed(&self, action: &'static str, status: tonic::Status) -> ClusterError {
        ClusterError::Scheduler {
            action,
            address: self.address.clone(),
            source: status.into(),
        }
    }

    /// Submits a plan of which each partition is a task, and returns the number of the job.
    ///
    /// # Errors
    /// The scheduler does not answer, or refuses the plan.
    pub(super) async fn submit(
        &mut self,
        plan: Arc<dyn ExecutionPlan>,
        session: &str,
    ) -> Result<String, ClusterError> {
        let refused = |why: String| ClusterError::Refused {
            address: self.address.clone(),
            why,
        };
        let mut encoded = Vec::new();
        PhysicalPlanNode::try_from_physical_plan(plan, &ShardCodec::default())
            .and_then(|node| node.try_encode(&mut encoded))
            .map_err(|error| refused(error.to_string()))?;
        let mut request = Request::new(ExecuteQueryParams {
            session_id: session.to_owned(),
            settings: vec![KeyValuePair {
                key: BALLISTA_SCHEDULER_MAX_PARTITIONS_PER_TASK.to_owned(),
                value: Some("1".to_owned()),
            }],
            operation_id: session.to_owned(),
            query: Some(Query::PhysicalPlan(encoded)),
        });
        insert_version_header(request.metadata_mut());
        let answer = self.client.execute_query(request).await;
        let answer = answer.map_err(|status| self.failed("send the plan to", status))?;
        match answer.into_inner().result {
            Some(Submitted::Success(success)) => Ok(success.job_id),
            Some(Submitted::Failure(failure)) => Err(ClusterError::Refused {
                address: self.address.clone(),
                why: format!("{failure:?}"),
            }),
            None => Err(ClusterError::Refused {
                address: self.address.clone(),
                why: "it says nothing".to_owned(),
            }),
        }
    }

    /// Returns how a job is.
    ///
    /// # Errors
    /// The scheduler does not answer.
    pub(super) async fn job(&mut self, job: &str) -> Result<Job, ClusterError> {
        let job_id = job.to_owned();
        let answer = self.client.get_job_status(GetJobStatusParams { job_id });
        let answer = answer.await;
        let answer = answer.map_err(|status| self.failed("ask", status))?;
        let status = answer.into_inner().status.and_then(|status| status.status);
        Ok(match status {
            None => Job::Unknown,
            Some(Status::Queued(_) | Status::Running(_)) => Job::Runs,
            Some(Status::Successful(_)) => Job::Ended,
            Some(Status::Failed(failed)) => Job::Failed(failed.error),
        })
    }

    /// Cancels a job.
    ///
    /// # Errors
    /// The scheduler does not answer.
    pub(super) async fn cancel(&mut self, job: &str) -> Result<(), ClusterError> {
        let job_id = job.to_owned();
        let cancelled = self.client.cancel_job(CancelJobParams { job_id }).await;
        cancelled
            .map(drop)
            .map_err(|status| self.failed("ask", status))
    }

    /// Tells the scheduler that an executor has gone, so that its tasks run elsewhere at once.
    ///
    /// # Errors
    /// The scheduler does not answer.
    pub(super) async fn executor_stopped(&mut self, name: &str) -> Result<(), ClusterError> {
        let stopped = self.client.executor_stopped(ExecutorStoppedParams {
            executor_id: name.to_owned(),
            reason: "its process has ended".to_owned(),
        });
        let stopped = stopped.await;
        stopped
            .map(drop)
            .map_err(|status| self.failed("tell", status))
    }
}
