// Package events carries what happens on this host to whoever follows it: the
// API's event stream, the command line, tests.
//
// A Bus keeps the most recent events in a ring, and a subscriber is no more
// than a position in that ring. So a publisher never waits, a subscriber that
// is slow or gone costs nothing, and one that fell behind is told how many
// events it missed instead of silently skipping them.
//
// Events are for people and for tests. Nothing may be decided from them: what
// must not be missed is in the ledger, the journal or a package's own state.
// They carry no secrets.
//
// It imports the standard library only.
package events
