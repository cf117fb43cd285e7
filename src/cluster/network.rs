//! [`Network`]: how the processes of a cluster connect, and how they prove that they belong to it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ballista_core::config::BallistaConfig;
use ballista_core::utils::{
    GrpcClientConfig, GrpcServerConfig, create_grpc_client_endpoint, create_grpc_server,
};
use tonic::transport::{
    Certificate, ClientTlsConfig, Endpoint, Error, Identity, Server, ServerTlsConfig,
};

use super::ClusterError;

/// The time in which both sides must have shown their certificates.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How the processes of a cluster connect: in the clear, or by TLS with certificates on both sides.
#[derive(Clone, Default)]
pub(crate) struct Network {
    certificates: Option<Certificates>,
}

#[derive(Clone)]
struct Certificates {
    own: Identity,
    authority: Certificate,
}

impl Network {
    /// Reads `tls.crt`, `tls.key` and `ca.crt` from a directory, if there is one. Without certificates, `host` must be of this
    /// machine, unless the user accepts others.
    ///
    /// # Errors
    /// A file can't be read, or other machines reach the host.
    pub(crate) fn new(
        host: &str,
        directory: &Option<PathBuf>,
        is_accepted: bool,
    ) -> Result<Self, ClusterError> {
        let Some(directory) = directory else {
            if is_loopback(host) || is_accepted {
                return Ok(Self::default());
            }
            let host = host.to_owned();
            return Err(ClusterError::Network { host });
        };
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).map_err(|source| ClusterError::Certificate { path, source })
        };
        Ok(Self {
            certificates: Some(Certificates {
                own: Identity::from_pem(read("tls.crt")?, read("tls.key")?),
                authority: Certificate::from_pem(read("ca.crt")?),
            }),
        })
    }

    /// Returns a server that admits whoever has a certificate of the same authority.
    ///
    /// # Errors
    /// The certificates or the key are broken.
    pub(super) fn server(&self) -> Result<Server, Error> {
        let server = create_grpc_server(&GrpcServerConfig::default());
        let Some(Certificates { own, authority }) = self.certificates.clone() else {
            return Ok(server);
        };
        let tls = ServerTlsConfig::new().identity(own);
        server.tls_config(tls.client_ca_root(authority).timeout(HANDSHAKE))
    }

    /// Returns how to reach the server at `grpc://HOST:PORT`. Its certificate must be for that host.
    ///
    /// # Errors
    /// The certificates or the key are broken.
    pub(super) fn endpoint(&self, address: &str) -> Result<Endpoint, Error> {
        let with_scheme = |scheme| address.replacen("grpc", scheme, 1);
        let config = GrpcClientConfig::from(&BallistaConfig::default());
        let Some(Certificates { own, authority }) = self.certificates.clone() else {
            return create_grpc_client_endpoint(with_scheme("http"), Some(&config));
        };
        let tls = ClientTlsConfig::new().identity(own);
        create_grpc_client_endpoint(with_scheme("https"), Some(&config))?
            .tls_config(tls.ca_certificate(authority).timeout(HANDSHAKE))
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key.
        let is_encrypted = self.certificates.is_some();
        f.debug_struct("Network")
            .field("is_encrypted", &is_encrypted)
            .finish()
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}
