//! Where a server is: `https://HOST:PORT/PREFIX`, parsed.

use http::Uri;

/// A text that is not the address of a server. Do not retry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address:?} is not the address of a server; write https://HOST:PORT")]
pub struct AddressError {
    address: String,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub(crate) url: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) authority: String,
    pub(crate) prefix: String,
    pub(crate) secure: bool,
    pub(crate) server_name: Option<String>,
}

impl Address {
    /// Reads `https://HOST:PORT`, or `http://…`; a path is put before the path of every request.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError { address: text.to_owned() };
        let url = text.trim_end_matches('/').to_owned();
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            authority: uri.authority().map(ToString::to_string).unwrap_or_default(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            secure,
            server_name: None,
            url,
        })
    }

    /// Expects the server's certificate to be for `name` instead of the host.
    #[must_use]
    pub fn expecting(mut self, name: Option<String>) -> Self {
        self.server_name = name;
        self
    }

    /// The address as it was given, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `HOST:PORT` as it was given.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The path that stands before the path of every request.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// The name that the server's certificate must be for.
    pub(crate) fn certified_name(&self) -> &str {
        self.server_name.as_deref().unwrap_or(&self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_a_scheme_and_a_host() {
        let address = Address::parse("https://[::1]:7443/").unwrap();
        assert_eq!((address.host.as_str(), address.port, address.secure), ("::1", 7443, true));
        assert_eq!((address.url(), address.prefix()), ("https://[::1]:7443", ""));
        assert_eq!(Address::parse("http://localhost").unwrap().port, 80);
        let address = Address::parse("https://proxy.example/cluster/a/").unwrap();
        assert_eq!((address.port, address.prefix()), (443, "/cluster/a"));
        for wrong in ["", "host:7443", "ftp://a", "https://"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
