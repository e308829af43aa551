package servicesteps

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
)

// TokenState is what Consul says of a token.
type TokenState string

// The states of a service's token.
const (
	TokenValid   TokenState = "valid"
	TokenGone    TokenState = "gone"    // this node's Consul agent does not know it
	TokenNone    TokenState = "none"    // the service has no token yet, or Consul has ACLs disabled
	TokenUnknown TokenState = "unknown" // Consul could not be asked
)

// Inspection is what Consul says of a service's token.
type Inspection struct {
	Token claim.Token
	State TokenState
	Err   error // why it is unknown
}

// Inspect asks this node's Consul agent about the token in the service's file. It changes nothing.
func (s *Steps) Inspect(ctx context.Context, svc *Service) Inspection {
	ctx, cancel := context.WithTimeout(ctx, s.Limits.ReadBack)
	defer cancel()
	found := Inspection{State: TokenNone}
	var secret string
	svc.workload.View(func() {
		if found.Token = svc.Token; svc.TokenSum != "" {
			found.State = TokenValid
			secret, found.Err = s.readToken(svc)
		}
	})
	if found.State == TokenNone {
		return found
	}
	if found.Err == nil {
		found.Err = s.Tokens.Read(ctx, found.Token, secret)
	}
	switch {
	case status.Code(found.Err) == codes.NotFound:
		found.State, found.Err = TokenGone, nil
	case found.Err != nil:
		found.State = TokenUnknown
	}
	return found
}
