// Package events distributes what happens on this host to its followers: the API's event stream, the command line,
// tests.
//
// A Bus keeps the most recent events in a ring, and a subscriber is only a position in that ring. So a publisher never
// waits, a slow subscriber costs nothing, and one that has fallen behind is told how many events it missed.
//
// A Bus may be kept in a file, so that what led to a crash can be read after it.
//
// Events are for people and for tests. Nothing may be decided from them: what must not be missed is in the ledger, the
// journal or a package's own state. They contain no secrets.
package events
