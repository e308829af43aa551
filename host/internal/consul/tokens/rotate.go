package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/identity"
)

// Times of a rotation.
const (
	// keyOverlap is how long a key is published after it was replaced. A JWT of it lives for jwtLife, and Consul
	// accepts it for a minute more. The rest is for the clocks of servers that lead one after the other.
	keyOverlap = 2 * jwtLife
	// keyUntold is how long a key is published before it signs, for a plugin that does not tell whether its verifiers
	// have it: longer than the answer with the keys may be cached.
	keyUntold = 10 * time.Minute
	// The pause between two attempts grows from the first to the longest.
	rotateFirst   = 200 * time.Millisecond
	rotateLongest = 15 * time.Second
	// rotateCall bounds the questions of one attempt to the servers, and to one Consul.
	rotateCall = 10 * time.Second
	// stuckAfter is how long a phase may take whose end is up to others.
	stuckAfter = time.Minute
)

// waiting is what the rotation waits for, on the leader.
type waiting struct {
	why   string
	until time.Time // zero: something else than time must pass
}

// notYet means that a phase of a rotation has not ended.
type notYet waiting

func (n *notYet) Error() string { return n.why }

func waitUntil(at time.Time, format string, args ...any) error {
	return &notYet{why: fmt.Sprintf(format, args...) + " " + at.UTC().Format(time.RFC3339), until: at}
}

// KeyStatus is the state of the signing key.
type KeyStatus struct {
	Signs claim.SigningKey
	// Rotation is under way if it has a phase.
	Rotation claim.KeyRotation
	// WaitsFor is why its phase has not ended; empty: it is about to. Stuck: somebody has to do something about it.
	WaitsFor string
	Stuck    bool
	// UnknownTo are the consul blocks whose auth method does not have the key: logins of services fail there. It is not
	// asked while a rotation is under way.
	UnknownTo []string
}

// Keys returns the state of the signing key, on the leader.
func (a *Authority) Keys(ctx context.Context) (s KeyStatus, err error) {
	if s.Signs, s.Rotation, err = a.signingKeys(ctx); err != nil || s.Signs.ID == "" {
		return s, err
	}
	if s.Rotation.Phase == "" {
		s.UnknownTo = a.unknownTo(ctx, s.Signs)
		return s, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.WaitsFor = a.waiting.why
	s.Stuck = s.WaitsFor != "" && a.waiting.until.IsZero() && time.Since(s.Rotation.Since) > stuckAfter
	return s, nil
}

// RotateKey begins to replace the signing key, unless that has begun.
func (a *Authority) RotateKey(ctx context.Context) error {
	_, rotation, err := a.signingKeys(ctx)
	if err != nil || rotation.Phase != "" {
		return err
	}
	next, err := a.makeSigningKey()
	if err != nil {
		return err
	}
	if rotation, err = cluster.Apply(ctx, a.Ledger, &command.RotateSigningKey{Next: next}); err != nil {
		return ledgerError(err)
	}
	a.phaseBegan(rotation)
	return nil
}

// LeadRotation ends the phases of rotations until ctx ends. It runs on the leader.
func (a *Authority) LeadRotation(ctx context.Context) {
	pause := rotateFirst
	for ctx.Err() == nil {
		watching, stop := context.WithCancel(ctx)
		changed := a.Ledger.Watch(watching, state.TopicSigningKey)
		rotates, err := a.endPhase(ctx)
		a.waitFor(err)
		var again <-chan time.Time
		var wait *notYet
		switch {
		case err == nil:
			pause = rotateFirst
		case errors.As(err, &wait) && !wait.until.IsZero():
			again = time.After(max(time.Until(wait.until), rotateFirst))
		default:
			again = time.After(pause)
			pause = min(2*pause, a.rotateLongest)
		}
		if err != nil || !rotates {
			select {
			case <-changed:
				pause = rotateFirst
			case <-again:
			case <-ctx.Done():
			}
		}
		stop()
	}
}

// waitFor records what the rotation waits for.
func (a *Authority) waitFor(err error) {
	var now waiting
	var wait *notYet
	if errors.As(err, &wait) {
		now = waiting(*wait)
	} else if err != nil {
		now.why = err.Error()
	}
	a.mu.Lock()
	before := a.waiting
	a.waiting = now
	a.mu.Unlock()
	if now.why != "" && now.why != before.why && !errors.Is(err, context.Canceled) {
		a.Log.Info("the rotation of the signing key waits", "for", now.why)
	}
}

// endPhase ends the present phase of the rotation if that may be. The error explains why not.
func (a *Authority) endPhase(ctx context.Context) (rotates bool, err error) {
	var is claim.KeyRotation
	err = a.Ledger.Read(ctx, func(tx *state.ReadTx) (err error) {
		is, rotates, err = tx.KeyRotation()
		return err
	})
	if err != nil || !rotates {
		return rotates, err
	}
	switch is.Phase {
	case claim.KeyPublished:
		err = a.knownEverywhere(ctx, is)
	case claim.KeyReplaced:
		if end := is.Since.Add(a.overlap); time.Now().Before(end) {
			err = waitUntil(end, "the JWTs that the key %s has signed are over at", is.Key.ID)
		}
	default:
		err = a.knownNowhere(ctx, is)
	}
	if err != nil {
		return true, err
	}
	next, err := cluster.Apply(ctx, a.Ledger, &command.AdvanceKeyRotation{Key: is.Key.ID, Phase: is.Phase})
	if err != nil && !errors.Is(err, claim.ErrConflict) {
		return true, err
	}
	if err == nil && next.Phase == "" {
		a.keyEvent("signing-key-gone", is.Key.ID, "no Consul accepts the replaced signing key any more")
	} else if err == nil {
		a.phaseBegan(next)
	}
	return true, nil
}

// phaseBegan publishes that a phase of a rotation has begun.
func (a *Authority) phaseBegan(r claim.KeyRotation) {
	message := map[claim.RotationPhase]string{
		claim.KeyPublished: "the next signing key is published",
		claim.KeyReplaced:  "the next signing key signs; the one before is still published",
		claim.KeyWithdrawn: "the replaced signing key is published no more",
	}[r.Phase]
	a.keyEvent("signing-key-"+string(r.Phase), r.Key.ID, message)
}

func (a *Authority) keyEvent(kind, key, message string) {
	a.Log.Info(message, "key", key)
	a.Events.Publish(events.Event{
		Topic: events.TopicAgent, Type: kind, Subject: key, Message: message, Details: map[string]string{"key": key},
	})
}

// knownEverywhere fails until every server publishes the next key, and every Consul has it.
func (a *Authority) knownEverywhere(ctx context.Context, is claim.KeyRotation) error {
	if err := a.publishedEverywhere(ctx, is.Key.ID); err != nil {
		return err
	}
	return a.eachIssuer(ctx, is, func(consul string, has bool) error {
		if has {
			return nil
		}
		return fmt.Errorf("the auth method of the consul block %q has not the key %s: "+
			"does it have the keys in itself (pannier setup consul -rotate-key), or does its Consul reach the JWKSURL?",
			consul, is.Key.ID)
	}, func(consul string) error {
		if end := is.Since.Add(a.untold); time.Now().Before(end) {
			return waitUntil(end, "the identity plugin of %q does not tell which keys its verifiers have, which is waited for until",
				consul)
		}
		return nil
	})
}

// publishedEverywhere fails until every other server publishes a key.
func (a *Authority) publishedEverywhere(ctx context.Context, id string) error {
	if a.KeySets == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rotateCall)
	defer cancel()
	sets, err := a.KeySets(ctx)
	if err != nil {
		return fmt.Errorf("every server has to publish the key %s: %w", id, err)
	}
	for _, server := range slices.Sorted(maps.Keys(sets)) {
		var set jose.JSONWebKeySet
		if err := json.Unmarshal(sets[server], &set); err != nil {
			return fmt.Errorf("the keys that the server %q publishes: %w", server, err)
		}
		if len(set.Key(id)) == 0 {
			return fmt.Errorf("the server %q does not publish the key %s yet", server, id)
		}
	}
	return nil
}

// knownNowhere fails while a Consul has a key that was replaced.
func (a *Authority) knownNowhere(ctx context.Context, is claim.KeyRotation) error {
	return a.eachIssuer(ctx, is, func(consul string, has bool) error {
		if !has {
			return nil
		}
		return fmt.Errorf("the auth method of the consul block %q still has the key %s, which was replaced: "+
			"pannier setup consul removes it", consul, is.Key.ID)
	}, func(string) error { return nil })
}

// unknownTo returns the consul blocks whose auth method answers that it does not have a key.
func (a *Authority) unknownTo(ctx context.Context, key claim.SigningKey) (blocks []string) {
	err := a.eachIssuer(ctx, claim.KeyRotation{Key: key}, func(consul string, has bool) error {
		if !has {
			blocks = append(blocks, consul)
		}
		return nil
	}, func(string) error { return nil })
	if err != nil {
		a.Log.Debug("it is not known which auth methods have the signing key", "error", err)
	}
	return blocks
}

// eachIssuer asks for each block with an issuer that gets JWTs whether that has the key of a rotation. told gets the
// answer; untold is called for a plugin that does not tell.
func (a *Authority) eachIssuer(ctx context.Context, is claim.KeyRotation, told func(consul string, has bool) error,
	untold func(consul string) error,
) error {
	key, err := a.open(is.Key)
	if err != nil {
		return fmt.Errorf("the signing key %s: %w", is.Key.ID, err)
	}
	question, err := expired(key)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(a.Consuls)) {
		if !a.wantsJWT(name) {
			continue
		}
		has, err := a.hasKey(ctx, name, question)
		switch {
		case status.Code(err) == codes.Unimplemented:
			err = untold(name)
		case err == nil:
			err = told(name, has)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *Authority) hasKey(ctx context.Context, consul, question string) (has bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, rotateCall)
	defer cancel()
	err = a.Identity(ctx, consul, func(ctx context.Context, i identity.Identity) (err error) {
		checker, ok := i.(identity.KeyChecker)
		if !ok {
			return status.Error(codes.Unimplemented, "no KeyChecker")
		}
		has, err = checker.HasKey(ctx, a.Consuls[consul], question)
		return err
	})
	return has, err
}

// wantsJWT reports whether the issuer of a block gets JWTs.
func (a *Authority) wantsJWT(consul string) bool {
	_, wanted := a.Audiences[consul]
	return wanted || a.Consuls[consul].AuthMethod != ""
}

// expired returns a JWT for which nobody gets a token: it shows only whether its key is known.
func expired(key *signer) (string, error) {
	then := time.Now().Add(-24 * time.Hour)
	text, err := jwt.Signed(key).Claims(jwt.Claims{
		Issuer: jwtIssuer, IssuedAt: jwt.NewNumericDate(then), NotBefore: jwt.NewNumericDate(then),
		Expiry: jwt.NewNumericDate(then.Add(jwtLife)),
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign a JWT: %w", err)
	}
	return text, nil
}
