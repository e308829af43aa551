// Package command defines the entries of the replicated log: the commands that change the ledger, and how they are
// encoded.
//
// An entry in a log is read by later versions of the program, and by servers that were not upgraded yet. So every
// entry carries a level and its kind, a change of meaning takes a new level, and a server that does not know an
// entry returns ErrUnknownCommand: it must stop there, since its ledger would differ from the others' from then
// on.
//
// Commands are plain data. All of them carry the leader's time, because no clock may be read when they are applied. A
// new command needs its type and its result type, a method of Ledger that applies it, and one row in the registry
// (registry.go). TestGoldenEntries prints the line that testdata/entries.txt needs.
package command

import (
	"time"
)

// Bounds of one command, which keep it within one transaction of the ledger.
const (
	// MaxClaims bounds the claims of one workload.
	MaxClaims = 128
	// MaxTokens bounds the tokens that a workload's start records.
	MaxTokens = 64
	// MaxItems bounds the items of AdvanceClaims, DeleteDrivers and DeleteTokens, and the claims that one
	// DeregisterVolume frees; DeleteWorkloads stops after as many.
	MaxItems = 128
	// MaxAfter bounds the workloads that one workload waits for.
	MaxAfter = 32
)

// Command is one of this package's commands.
type Command interface{ stamp() *Stamp }

// Of is a command with the result R.
type Of[R any] interface {
	Command
	returns(R)
}

// Returns is embedded in every command and names the type of its result.
type Returns[R any] struct{ Stamp }

func (*Returns[R]) returns(R) {}

// Stamp is what all commands have.
type Stamp struct {
	// At is the leader's time when it accepted the command. It is in the head of the entry.
	At time.Time `json:"-"`
	// Key makes the command safe to repeat: a command that was applied under the same key within the last hour,
	// and the last 262,144 log entries, is answered with its result and changes nothing. A StartWorkload is known
	// for as long as its run is the workload's last. The key is an id (claim.CheckID) that nobody can guess;
	// empty: no key.
	Key string `json:"command_key,omitempty"`
	// Term is raft's term in which the leader decided the command; in an entry of another term it is refused
	// (ErrNotLeader). 0: an agent or an operator decided it, and every leader may apply it.
	Term uint64 `json:"term,omitempty"`

	fingerprint []byte // of the entry that the command was decoded from
}

func (s *Stamp) stamp() *Stamp { return s }

// SetAt stamps a command with the leader's time.
func SetAt(c Command, at time.Time) { c.stamp().At = at }

// At returns the leader's time when it accepted the command.
func At(c Command) time.Time { return c.stamp().At }

// Key returns the command's key; empty: it has none.
func Key(c Command) string { return c.stamp().Key }

// SetKey sets the key under which a command may be repeated.
func SetKey(c Command, key string) { s := c.stamp(); s.Key, s.fingerprint = key, nil }

// Term returns the term in which a leader decided the command; 0: no leader did.
func Term(c Command) uint64 { return c.stamp().Term }

// SetTerm makes a command the decision of the leader of a term.
func SetTerm(c Command, term uint64) { s := c.stamp(); s.Term, s.fingerprint = term, nil }
