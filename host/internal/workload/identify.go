package workload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/system/failpoint"
)

// identify gives the service its token, in a file. One that it has from before a
// restart of the host it keeps.
func (r *run) identify(ctx context.Context, s *svc) error { return r.ensureToken(ctx, s) }

// ensureToken sees to it that the service has a token that Consul knows and that lives
// for some time yet, and that its file holds it.
func (r *run) ensureToken(ctx context.Context, s *svc) error {
	bound := r.identityTimeout(s.consul)
	bounded, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("%w, more than %s", errTooLong, bound))
	defer cancel()
	if err := r.tokenFor(bounded, s); err != nil {
		return fmt.Errorf("identify service %q of %s with Consul %q: %w", s.name, r.instance, s.consul, err)
	}
	return nil
}

func (r *run) identityTimeout(consul string) time.Duration {
	if d := r.IdentityTimeout[consul]; d > 0 {
		return d
	}
	return r.limits.identity
}

func (r *run) tokenFor(ctx context.Context, s *svc) error {
	if err := r.writeAdopted(s); err != nil {
		return err
	}
	secret, err := r.written(s)
	if err == nil && s.Next.ID == "" && !s.due(time.Now()) {
		if err := r.known(ctx, s, secret); !notFound(err) {
			return err
		}
		r.log.Warn("Consul does not know the token of a service any more; it gets another one", "workload", r.ref, "service", s.name, "accessor", s.Token.Accessor)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("the token file of a service is not what was written; it is written again", "workload", r.ref, "service", s.name, "error", err)
	}
	t := s.Token
	switch {
	case t.Accessor == "": // never derived, or nobody knows
	case err != nil && t.Accessor == t.ID: // minted: asking again gives the same
	default:
		if t, err = r.replacement(ctx, s); err != nil {
			return err
		}
	}
	return r.obtain(ctx, s, t)
}

// due says that two thirds of the token's life have passed.
func (s *svc) due(now time.Time) bool {
	at := s.renewal()
	return !at.IsZero() && !now.Before(at)
}

// renewal is when the token is to be replaced; zero: never.
func (s *svc) renewal() time.Time {
	if s.Token.ExpiresAt.IsZero() {
		return time.Time{}
	}
	return s.IssuedAt.Add(s.Token.ExpiresAt.Sub(s.IssuedAt) * 2 / 3)
}

// written reads the token's file; an error where it is not what was written.
func (r *run) written(s *svc) (secret string, err error) {
	if s.TokenSum == "" {
		return "", fs.ErrNotExist
	}
	raw, err := r.SecretsDir.Read(r.place(s), tokenFile, r.rec.UID)
	if err == nil && digest(raw) != s.TokenSum {
		err = fmt.Errorf("%s: %w: what is in it was not written by the host", r.SecretsDir.Path(r.place(s), tokenFile), secretsdir.ErrForeign)
	}
	if err != nil {
		return "", err
	}
	return string(raw), nil
}

// replacement notes that another token will come in the place of the service's, in the
// journal and then in the ledger: both know of all that Consul may have.
func (r *run) replacement(ctx context.Context, s *svc) (claim.Token, error) {
	if s.Next.ID == "" {
		next := claim.Token{ID: newID(), Workload: r.ref, Node: r.Node, Service: s.name, Consul: s.consul}
		if err := r.update(r.journal, func(*record) { s.Next = next }); err != nil {
			return claim.Token{}, err
		}
		failpoint.Here("token", "chosen")
	}
	err := r.retry(ctx, r.limits.identity, recoverable, func(ctx context.Context) error { return r.Tokens.Intend(ctx, s.Next) })
	if err != nil {
		return claim.Token{}, fmt.Errorf("note another token in the ledger: %w", err)
	}
	failpoint.Here("token", "intended")
	return s.Next, nil
}

// obtain has a token derived, waits until this node's Consul agent knows it, and puts
// it into the service's file.
func (r *run) obtain(ctx context.Context, s *svc, t claim.Token) error {
	var secret string
	err := r.retry(ctx, r.identityTimeout(s.consul), recoverable, func(ctx context.Context) (err error) {
		var derived claim.Token
		if derived, secret, err = r.Tokens.Derive(ctx, t); err == nil {
			t = derived
		}
		return err
	})
	if err != nil {
		return err
	}
	if secret == "" {
		return nil // Consul has ACLs disabled; the next look asks again
	}
	s.secrets[t.ID] = secret
	failpoint.Here("token", "derived")
	if err := r.known(ctx, s, secret); err != nil {
		return fmt.Errorf("its token %s was derived and cannot be read back: %w", t.Accessor, err)
	}
	if err := r.adopt(s, t, secret); err != nil {
		return err
	}
	failpoint.Here("token", "adopted")
	return r.writeAdopted(s)
}

// writeAdopted puts the secret of the service's token into its file, where it is in
// none yet: after a file that could not be written it is there still.
func (r *run) writeAdopted(s *svc) error {
	secret, unwritten := s.secrets[s.Token.ID]
	if !unwritten || digest([]byte(secret)) != s.TokenSum {
		return nil
	}
	if err := r.SecretsDir.Write(r.place(s), tokenFile, []byte(secret), r.rec.UID); err != nil {
		return err
	}
	failpoint.Here("token", "written")
	delete(s.secrets, s.Token.ID)
	return nil
}

// known reads a token back from this node's Consul agent, which may learn of it later
// than the servers.
func (r *run) known(ctx context.Context, s *svc, secret string) error {
	worth := func(err error) bool { return notFound(err) || recoverable(err) }
	return r.retry(ctx, r.limits.readBack, worth, func(ctx context.Context) error { return r.Tokens.Read(ctx, s.consul, secret) })
}

// adopt makes a token the service's, in the journal before it is in the file. The
// bootstrap that was made with another one does not count any more.
func (r *run) adopt(s *svc, t claim.Token, secret string) error {
	before, err := r.written(s)
	if replaced := s.Token; replaced.ID != t.ID && err == nil {
		s.secrets[replaced.ID] = before
	}
	return r.update(r.journal, func(*record) {
		if s.Token.ID != t.ID {
			s.Former, s.Next = append(s.Former, s.Token), claim.Token{}
		}
		if sum := digest([]byte(secret)); sum != s.TokenSum {
			s.TokenSum, s.BootstrapSum = sum, ""
		}
		s.Token, s.IssuedAt = t, time.Now().UTC()
	})
}

// disown revokes the service's tokens and takes its folder away. The folder goes last:
// in it is the secret, without which what was given by login cannot be ended.
func (r *run) disown(ctx context.Context, s *svc) error {
	ctx, cancel := context.WithTimeout(ctx, r.limits.release)
	defer cancel()
	if secret, err := r.written(s); err == nil {
		s.secrets[s.Token.ID] = secret
	} else if !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("the token file of a service cannot be read; what was given by login ends when it expires", "workload", r.ref, "service", s.name, "error", err)
	}
	for _, t := range s.tokens() {
		if err := r.revoke(ctx, s, t); err != nil {
			return err
		}
	}
	failpoint.Here("token", "revoked")
	if err := r.SecretsDir.Remove(r.place(s)); err != nil {
		return fmt.Errorf("remove the secrets of service %q of %s: %w", s.name, r.instance, err)
	}
	return r.update(nil, func(*record) { s.TokenSum, s.Token, s.Next, s.Former = "", claim.Token{}, claim.Token{}, nil })
}

func (r *run) revoke(ctx context.Context, s *svc, t claim.Token) error {
	if err := r.Tokens.Revoke(ctx, t, s.secrets[t.ID]); err != nil {
		return fmt.Errorf("revoke the token of service %q of %s in Consul %q: %w", s.name, r.instance, s.consul, err)
	}
	delete(s.secrets, t.ID)
	return nil
}
