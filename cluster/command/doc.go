// Package command defines the entries of the replicated log: what may be asked
// of the ledger, and how that is written down.
//
// An entry, once in a log, is read by later versions of the program too, and by
// servers that have not been upgraded yet. So every entry carries the version of
// its encoding and its type, a change of meaning takes a new version, and a
// server that does not know what it reads says ErrUnknownCommand: it must stop
// there, since going on would make its ledger differ from the others'.
//
// Commands are plain data. All of them carry the leader's time, because no clock
// may be read when they are applied. The package imports cluster/claim,
// cluster/acl and the standard library only.
package command
