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

import (
	"time"
)

// Bounds of one command. They keep each within one transaction of the ledger.
const (
	// MaxClaims bounds the claims of one workload.
	MaxClaims = 128
	// MaxTokens bounds the tokens that are noted with a workload's start.
	MaxTokens = 64
	// MaxItems bounds the items of AdvanceClaims, DeleteDrivers, DeleteTokens and
	// DeregisterVolume's claims; DeleteWorkloads stops at as many.
	MaxItems = 128
	// MaxAfter bounds the workloads that one waits for.
	MaxAfter = 32
)

// Command is one of this package's commands.
type Command interface {
	at() time.Time
	stamp(time.Time)
	key() string
	setKey(string)
	sum() []byte
	setSum([]byte)
}

// Stamp is embedded in every command.
type Stamp struct {
	// At is the leader's time when it took the command in.
	At time.Time `json:"at"`
	// Key makes the command safe to repeat: one that was applied under the same key within
	// the last hour, and 262,144 entries of the log, is answered with its result and changes
	// nothing. A StartWorkload is known for as long as its run is the workload's last. An id
	// (claim.CheckID) that nobody can guess; empty: none.
	Key string `json:"command_key,omitempty"`

	fingerprint []byte // of the entry that the command was read from
}

func (s *Stamp) at() time.Time { return s.At }

func (s *Stamp) stamp(at time.Time) { s.At = at }

func (s *Stamp) key() string { return s.Key }

func (s *Stamp) setKey(key string) { s.Key, s.fingerprint = key, nil }

func (s *Stamp) sum() []byte { return s.fingerprint }

func (s *Stamp) setSum(sum []byte) { s.fingerprint = sum }

// SetAt stamps a command with the leader's time.
func SetAt(c Command, at time.Time) { c.stamp(at) }

// At is the leader's time when it took the command in.
func At(c Command) time.Time { return c.at() }

// Key is the command's key; empty: it has none.
func Key(c Command) string { return c.key() }

// SetKey gives a command the key under which it may be repeated.
func SetKey(c Command, key string) { c.setKey(key) }
