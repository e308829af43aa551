package consul

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/consul/api"
)

// settled makes sure of an answer that the request's token does not exist. A leader that was just elected gives it for
// tokens that stand, as long as it has not read its whole state; such a leader does not answer consistent reads. Only
// a consistent read that does not find the token either makes the answer definite; else it may be retried.
type settled struct {
	next   http.RoundTripper
	prefix string // of the paths of Consul's API
}

// Consul's answers have no codes: unknownToken is in that to a request with a token that it does not know, but also,
// after unknownObject, in that to a read of a token that does not exist.
const (
	unknownToken  = "ACL not found"
	unknownObject = "token does not exist"
)

// NoSuchToken reports whether Consul answered that the token which a request reads does not exist.
func NoSuchToken(err error) bool {
	var answer api.StatusError
	return errors.As(err, &answer) && (answer.Code == http.StatusNotFound ||
		answer.Code == http.StatusForbidden && strings.Contains(answer.Body, unknownObject))
}

func (s settled) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := s.next.RoundTrip(req)
	token := req.Header.Get(tokenHeader)
	if err != nil || res.StatusCode != http.StatusForbidden || token == "" {
		return res, err
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	_ = res.Body.Close()
	if err != nil {
		return nil, err
	}
	stands := false
	if bytes.Contains(text, []byte(unknownToken)) && !bytes.Contains(text, []byte(unknownObject)) {
		if stands, err = s.stands(req, token); err != nil {
			return nil, fmt.Errorf("cannot confirm that Consul answered %q: %w", text, err)
		}
	}
	if stands {
		res.StatusCode = http.StatusServiceUnavailable
		text = append(text, ", although the token exists: it has not read its whole state yet"...)
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return res, nil
}

// stands reads the token of a request consistently.
func (s settled) stands(req *http.Request, token string) (bool, error) {
	where := *req.URL
	where.Path, where.RawPath = s.prefix+"/v1/acl/token/self", ""
	where.RawQuery = url.Values{"dc": req.URL.Query()["dc"], "consistent": {""}}.Encode()
	ask, err := http.NewRequestWithContext(req.Context(), http.MethodGet, where.String(), http.NoBody)
	if err != nil {
		return false, err
	}
	ask.Header.Set(tokenHeader, token)
	res, err := s.next.RoundTrip(ask)
	if err != nil {
		return false, err
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // the status says enough
	_ = res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusForbidden, http.StatusNotFound:
		return false, nil
	}
	return false, api.StatusError{Code: res.StatusCode, Body: string(text)}
}
