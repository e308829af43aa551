package consul

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
)

// tokenHeader carries the ACL token of a request.
const tokenHeader = "X-Consul-Token"

// maxRefusal bounds how much is read of an answer that is an error, in bytes.
const maxRefusal = 64 << 10

// redacting takes out of the answers that are errors what their requests have carried of
// secrets: a proxy before Consul, or whoever else answers at its address, may repeat
// what it was sent, and an error's text goes to the host and into logs.
type redacting struct{ next http.RoundTripper }

func (r redacting) RoundTrip(req *http.Request) (*http.Response, error) {
	secrets := sentSecrets(req)
	res, err := r.next.RoundTrip(req)
	if err != nil || res.StatusCode < http.StatusBadRequest || len(secrets) == 0 {
		return res, err
	}
	text, readErr := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	_ = res.Body.Close()
	for _, s := range secrets {
		text = bytes.ReplaceAll(text, []byte(s), []byte("[REDACTED]"))
	}
	res.Body = io.NopCloser(io.MultiReader(bytes.NewReader(text), failing{readErr}))
	res.ContentLength = int64(len(text))
	return res, nil
}

// failing is a reader that ends as another one did.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// sentSecrets are the token of a request, and in its body JWTs and the headers of checks.
func sentSecrets(req *http.Request) []string {
	var secrets []string
	if token := req.Header.Get(tokenHeader); token != "" {
		secrets = append(secrets, token)
	}
	if req.GetBody == nil {
		return secrets
	}
	body, err := req.GetBody()
	if err != nil {
		return secrets
	}
	defer body.Close()
	var sent any
	if json.NewDecoder(body).Decode(&sent) != nil {
		return secrets
	}
	return collect(secrets, sent, false)
}

// collect appends the texts below the keys that hold secrets.
func collect(secrets []string, v any, secret bool) []string {
	switch v := v.(type) {
	case string:
		if secret && v != "" {
			secrets = append(secrets, v)
		}
	case []any:
		for _, element := range v {
			secrets = collect(secrets, element, secret)
		}
	case map[string]any:
		for key, element := range v {
			secrets = collect(secrets, element, secret || key == "BearerToken" || key == "Header")
		}
	}
	return secrets
}
