// Package volumes answers the API's calls about volumes and snapshots.
//
// A definition is checked completely before a driver is asked. A change at a driver that the ledger could not record
// can be repeated, and its error says so. Secrets, also in mount flags, are shown as [REDACTED].
package volumes
