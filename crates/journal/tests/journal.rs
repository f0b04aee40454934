//! What the record promises, proved through its public face on real files.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

#[path = "journal/ahead.rs"]
mod ahead;
#[path = "journal/damage.rs"]
mod damage;
#[path = "journal/durability.rs"]
mod durability;
#[path = "journal/expiry.rs"]
mod expiry;
#[path = "journal/places.rs"]
mod places;
#[path = "journal/record.rs"]
mod record;
#[path = "journal/support.rs"]
mod support;
#[path = "journal/versions.rs"]
mod versions;
