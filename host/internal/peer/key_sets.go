package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/pannier/pannier/host/internal/peer/route"
)

// keySetLimit bounds the key set of a server, in bytes.
const keySetLimit = 1 << 20

// KeySets asks servers, by their names and except this one, for the JSON Web Key Sets that they publish. The error says
// which did not answer.
func (s *Servers) KeySets(ctx context.Context, names []string) (map[string][]byte, error) {
	sets := map[string][]byte{}
	members := s.Servers()
	var errs []error
	for _, name := range names {
		if name == s.cfg.Name {
			continue
		}
		i := slices.IndexFunc(members, func(m route.Member) bool { return m.Name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("server %q is no member of the cluster now (see: pannier server members)", name))
			continue
		}
		set, err := s.keySet(ctx, members[i].Addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("server %q: %w", name, err))
		}
		sets[name] = set
	}
	return sets, errors.Join(errs...)
}

func (s *Servers) keySet(ctx context.Context, addr string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/.well-known/jwks.json", nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.cfg.Dialer.Transport().RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, keySetLimit))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("it answers %s", resp.Status)
	}
	return text, err
}
