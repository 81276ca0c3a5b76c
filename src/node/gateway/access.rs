//! What callers of the gateway are asked about.

use crate::{
    api::{EXTENSIONS_GROUP, V1BETA1},
    auth::{Attributes, Authorizer, Decision, Identity, ResourceAttributes},
};

use super::answer::Refusal;

/// The resource and the verbs that a caller needs in the namespace of a claim.
#[derive(Clone, Debug)]
pub struct ClaimAccess {
    /// The API group.
    pub group: String,
    /// The resource's plural.
    pub resource: String,
    /// The verb for a claim.
    pub create_verb: String,
    /// The verb for giving one back.
    pub delete_verb: String,
}

impl Default for ClaimAccess {
    /// `create` and `delete` of `sandboxclaims.extensions.agents.x-k8s.io`.
    fn default() -> Self {
        Self {
            group: EXTENSIONS_GROUP.to_owned(),
            resource: "sandboxclaims".to_owned(),
            create_verb: "create".to_owned(),
            delete_verb: "delete".to_owned(),
        }
    }
}

impl ClaimAccess {
    /// Whether the caller may do this in the namespace. Asked without a name, as a create is: the right is to all claims of it.
    pub(super) async fn check(
        &self,
        authorizer: &Authorizer,
        caller: &Identity,
        verb: &str,
        namespace: &str,
    ) -> Result<(), Refusal> {
        let version = match self.group.as_str() {
            EXTENSIONS_GROUP => V1BETA1,
            _ => "*",
        };
        let attributes = Attributes::Resource(ResourceAttributes {
            verb,
            group: &self.group,
            version,
            resource: &self.resource,
            namespace,
            ..ResourceAttributes::default()
        });
        let decision = authorizer.authorize(&caller.user, &attributes, caller.origin);
        match decision.await {
            Ok(Decision::Allow) => Ok(()),
            Ok(Decision::Deny { reason }) => {
                let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
                Err(Refusal::Forbidden {
                    text: format!(
                        "User \"{}\" cannot {verb} resource \"{}\" in API group \"{}\" in the namespace \"{namespace}\"{reason}",
                        caller.user.name, self.resource, self.group
                    ),
                })
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "caller not authorized");
                Err(Refusal::Unasked)
            }
        }
    }
}
