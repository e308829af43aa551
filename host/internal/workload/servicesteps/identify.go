package servicesteps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// Identify gives the service a token, in a file: one that Consul knows and that does not expire
// soon. A token from before a restart of the host is kept.
func (s *Steps) Identify(ctx context.Context, svc *Service) error {
	bound := s.identityTimeout(svc.Consul)
	bounded, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("%w, more than %s", step.ErrTooLong, bound))
	defer cancel()
	if err := s.identify(bounded, svc); err != nil {
		return fmt.Errorf("identify %s: %w", svc, err)
	}
	return nil
}

func (s *Steps) identityTimeout(consul string) time.Duration {
	if d := s.IdentityTimeout[consul]; d > 0 {
		return d
	}
	return s.Limits.Identity
}

func (s *Steps) identify(ctx context.Context, svc *Service) error {
	if err := s.writeAdopted(svc); err != nil {
		return err
	}
	secret, err := s.readToken(svc)
	if err == nil && svc.Next.ID == "" && !svc.renewalDue() {
		if err := s.readBack(ctx, svc.Token, secret); status.Code(err) != codes.NotFound {
			return err
		}
		s.Log.Warn("Consul does not know the token of a service any more; the service gets another one",
			"workload", svc.workload.Ref(), "service", svc.Name, "accessor", svc.Token.Accessor)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("the token file of a service is not what was written; it is written again",
			"workload", svc.workload.Ref(), "service", svc.Name, "error", err)
	}
	t := svc.Token
	switch {
	case t.Accessor == "": // it was not derived yet, or that is not known
	case err != nil && t.Accessor == t.ID: // it was minted: deriving it again gives the same token
	default:
		if t, err = s.replacement(ctx, svc); err != nil {
			return err
		}
	}
	return s.derive(ctx, svc, t)
}

func (s *Service) renewalDue() bool {
	at := s.renewal()
	return !at.IsZero() && !time.Now().Before(at)
}

// renewal is when the token is to be replaced, after two thirds of its life; zero: never.
func (s *Service) renewal() time.Time {
	if s.Token.ExpiresAt.IsZero() {
		return time.Time{}
	}
	return s.IssuedAt.Add(s.Token.ExpiresAt.Sub(s.IssuedAt) * 2 / 3)
}

// readToken reads the token's file; it fails where the file is not what was written.
func (s *Steps) readToken(svc *Service) (secret string, err error) {
	if svc.TokenSum == "" {
		return "", fs.ErrNotExist
	}
	raw, err := s.SecretsDir.Read(svc.place(), tokenFile, svc.uid)
	if err == nil && digest(raw) != svc.TokenSum {
		err = fmt.Errorf("%s: %w: its content was not written by the host", s.SecretsDir.Path(svc.place(), tokenFile),
			secretsdir.ErrForeign)
	}
	if err != nil {
		return "", err
	}
	return string(raw), nil
}

// replacement records that another token will replace the service's, in the journal and then in
// the ledger: both know every token that Consul may have.
func (s *Steps) replacement(ctx context.Context, svc *Service) (claim.Token, error) {
	if svc.Next.ID == "" {
		next := s.newToken(svc.workload.Ref(), svc.Name, svc.Consul)
		if err := svc.workload.Save(func() { svc.Next = next }); err != nil {
			return claim.Token{}, err
		}
		failpoint.Here("token", "chosen")
	}
	err := s.Limits.Retry.Retry(ctx, s.Limits.Identity, step.Retryable, func(ctx context.Context) error {
		return s.Tokens.Intend(ctx, svc.Next)
	})
	if err != nil {
		return claim.Token{}, fmt.Errorf("record another token in the ledger: %w", err)
	}
	failpoint.Here("token", "intended")
	return svc.Next, nil
}

// derive derives a token, waits until this node's Consul agent knows it, and writes it to the
// service's file.
func (s *Steps) derive(ctx context.Context, svc *Service, t claim.Token) error {
	var secret string
	err := s.Limits.Retry.Retry(ctx, s.identityTimeout(svc.Consul), step.Retryable, func(ctx context.Context) (err error) {
		var derived claim.Token
		before := svc.asked[t.ID]
		svc.asked[t.ID] = true
		if derived, secret, err = s.Tokens.Derive(ctx, t); err == nil {
			t = derived
		}
		svc.asked[t.ID] = before || !step.Definite(err)
		return err
	})
	if err != nil {
		return err
	}
	if secret == "" {
		return nil // Consul has ACLs disabled; the next look tries again
	}
	svc.secrets[t.ID] = secret
	failpoint.Here("token", "derived")
	err = s.Limits.Retry.Retry(ctx, s.identityTimeout(svc.Consul), step.Retryable, func(ctx context.Context) error {
		return s.readBack(ctx, t, secret)
	})
	if err != nil {
		return fmt.Errorf("its token %s was derived and cannot be read back: %w", t.Accessor, err)
	}
	if err := s.adopt(svc, t, secret); err != nil {
		return err
	}
	failpoint.Here("token", "adopted")
	return s.writeAdopted(svc)
}

// writeAdopted writes the secret of the service's token to its file, where it is in none yet:
// the secret stays in memory after a file that could not be written.
func (s *Steps) writeAdopted(svc *Service) error {
	secret, unwritten := svc.secrets[svc.Token.ID]
	if !unwritten || digest([]byte(secret)) != svc.TokenSum {
		return nil
	}
	if err := s.SecretsDir.Write(svc.place(), tokenFile, []byte(secret), svc.uid); err != nil {
		return err
	}
	failpoint.Here("token", "written")
	delete(svc.secrets, svc.Token.ID)
	return nil
}

// readBack reads a token from this node's Consul agent, which may know it later than the servers.
func (s *Steps) readBack(ctx context.Context, t claim.Token, secret string) error {
	retryable := func(err error) bool { return status.Code(err) == codes.NotFound || step.Retryable(err) }
	return s.Limits.Retry.Retry(ctx, s.Limits.ReadBack, retryable, func(ctx context.Context) error {
		return s.Tokens.Read(ctx, t, secret)
	})
}

// adopt makes a token the service's, in the journal before it is in the file. A bootstrap that
// was made with another token is made again: it may contain the token.
func (s *Steps) adopt(svc *Service, t claim.Token, secret string) error {
	before, err := s.readToken(svc)
	if replaced := svc.Token; replaced.ID != t.ID && err == nil {
		svc.secrets[replaced.ID] = before
	}
	return svc.workload.Save(func() {
		if svc.Token.ID != t.ID {
			svc.Former, svc.Next = append(svc.Former, svc.Token), claim.Token{}
		}
		if sum := digest([]byte(secret)); sum != svc.TokenSum {
			if svc.TokenSum = sum; len(svc.BootstrapSums) > 0 {
				svc.Remake++
			}
		}
		svc.Token, svc.IssuedAt = t, time.Now().UTC()
	})
}

// NoteUnmade notes which of the service's tokens Consul has not made. The workload's lock is held, and nothing takes
// the service's steps.
func (s *Service) NoteUnmade() {
	s.Unmade = nil
	for _, t := range s.tokens() {
		if !s.asked[t.ID] {
			s.Unmade = append(s.Unmade, t.ID)
		}
	}
}

// Revoke revokes the service's tokens and removes its folder. The folder goes last: it holds the
// secret, and a token of a login cannot be revoked without it. Tokens that Consul has never made
// are only forgotten.
func (s *Steps) Revoke(ctx context.Context, svc *Service) error {
	ctx, cancel := context.WithTimeout(ctx, s.Limits.Release)
	defer cancel()
	if secret, err := s.readToken(svc); err == nil {
		svc.secrets[svc.Token.ID] = secret
	} else if !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("the token file of a service cannot be read; a token of a login stays valid until it expires",
			"workload", svc.workload.Ref(), "service", svc.Name, "error", err)
	}
	for _, t := range svc.tokens() {
		if err := s.revoke(ctx, svc, t); err != nil {
			return err
		}
	}
	failpoint.Here("token", "revoked")
	if err := s.SecretsDir.Remove(svc.place()); err != nil {
		return fmt.Errorf("remove the secrets of %s: %w", svc, err)
	}
	svc.workload.Update(func() { svc.TokenSum, svc.Token, svc.Next, svc.Former = "", claim.Token{}, claim.Token{}, nil })
	return nil
}

func (s *Steps) revoke(ctx context.Context, svc *Service, t claim.Token) error {
	if slices.Contains(svc.Unmade, t.ID) {
		if err := s.Tokens.Forget(ctx, t); err != nil {
			return fmt.Errorf("remove the record of the token of %s, which Consul %q has not made: %w", svc, svc.Consul, err)
		}
		return nil
	}
	if err := s.Tokens.Revoke(ctx, t, svc.secrets[t.ID]); err != nil {
		err = fmt.Errorf("revoke the token of %s: %w", svc, err)
		if err = s.leave(ctx, svc, "token", cmp.Or(t.Accessor, t.ID), err); err != nil {
			return err
		}
	}
	delete(svc.secrets, t.ID)
	return nil
}
