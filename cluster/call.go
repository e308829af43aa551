package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"sync"

	"github.com/pannier/pannier/cluster/command"
)

// WithCall tells which call commands belong to that are applied with the context. Made again under
// the same name, a call finds those that were applied: each is answered as it was then, and changes nothing.
// The name is an id that nobody can guess, and ctx is of one attempt.
func WithCall(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callKey{}, &call{name: name, made: map[[sha256.Size]byte]uint64{}})
}

type callKey struct{}

// call is one attempt at a call.
type call struct {
	name string
	mu   sync.Mutex
	made map[[sha256.Size]byte]uint64 // how often, by command
}

// setKey gives a command the key that follows from its call, from what it is, and from how often
// the call has made it: a call that comes to other commands the second time makes new ones. Outside of a call it is a
// new key. The error is of a command that cannot be written down.
func setKey(ctx context.Context, c command.Command) error {
	of, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		command.SetKey(c, rand.Text())
		return nil
	}
	command.SetKey(c, "")
	sum, err := command.Fingerprint(c)
	if err != nil {
		return err
	}
	what := [sha256.Size]byte(sum)
	of.mu.Lock()
	times := of.made[what]
	of.made[what]++
	of.mu.Unlock()
	key := sha256.Sum256(append(binary.BigEndian.AppendUint64(what[:], times), of.name...))
	command.SetKey(c, base32.StdEncoding.EncodeToString(key[:])[:26])
	return nil
}
