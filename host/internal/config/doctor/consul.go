package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/internal/cabundle"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/service"
)

// answerLimit bounds an answer in bytes.
const answerLimit = 1 << 20

// consul asks each Consul who leads it, and whether the block's token may register services there. Tokens of plugins
// are their own matter.
func (p *Patient) consul(ctx context.Context) []Finding {
	var problems []Finding
	asked := 0
	for _, c := range p.Config.Consuls {
		if c.WantsJWT() {
			problems = append(problems, p.publicKeys(ctx, c.Block())...)
		}
		if c.IdentityOnly {
			continue
		}
		asked++
		s, err := askConsul(ctx, c.Consul)
		if err != nil {
			problems = append(problems, one(s, fmt.Sprintf("%s at %s: %v", c.Block(), c.Address, err),
				fmt.Sprintf("consul acl token read -self -http-addr=%s -token-file=%s", c.Address, cmp.Or(c.TokenFile, "FILE")))...)
		}
	}
	problems = append(problems, p.keyRotation(ctx)...)
	if asked == 0 && len(problems) == 0 {
		return skipped("no consul block is configured")
	}
	return or(problems, "%d answer, and the tokens suffice", asked)
}

// keyRotation: a Consul does not have the signing key, or a rotation of it waits for somebody.
func (p *Patient) keyRotation(ctx context.Context) []Finding {
	if p.status == nil {
		return nil
	}
	resp, err := p.Client.Secrets.GetSigningKeys(ctx, &hostv1.GetSigningKeysRequest{})
	if err != nil {
		return nil
	}
	var problems []Finding
	for _, block := range resp.GetKeys().GetUnknownTo() {
		problems = append(problems, one(Fail, fmt.Sprintf("the auth method of the consul block %q does not have the key %s, which "+
			"signs: services cannot log in there", block, resp.GetKeys().GetSigns().GetId()), "pannier setup consul -consul "+block)...)
	}
	if !resp.GetKeys().GetStuck() {
		return problems
	}
	return append(problems, one(Warn, "the rotation of the key that signs is stuck: "+resp.GetKeys().GetWaitsFor(), "pannier setup consul")...)
}

// publicKeys: Consul verifies the JWTs of workloads by the keys that the agent serves.
func (p *Patient) publicKeys(ctx context.Context, block string) []Finding {
	if p.status == nil {
		return nil
	}
	scheme := "http"
	if p.Config.TLS != nil {
		scheme = "https"
	}
	url := scheme + "://" + p.status.GetHttpAddress() + "/.well-known/jwks.json"
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if p.Config.TLS != nil {
		roots, err := readRoots(p.Config.TLS.CA)
		if err != nil {
			return one(Fail, err.Error(), "")
		}
		agent := pki.Identity{Role: pki.Node, DC: p.Config.Datacenter}
		if p.Config.Server.Enabled {
			agent.Role = pki.Server
		}
		client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: roots,
			ServerName: agent.DNSName(),
		}
	}
	var keys struct {
		Keys []json.RawMessage `json:"keys"`
	}
	err := call(ctx, client, http.MethodGet, url, "", nil, &keys)
	if err == nil && len(keys.Keys) == 0 {
		err = errors.New("there is no key yet")
	}
	if err != nil {
		return one(Fail, fmt.Sprintf("%s verifies JWTs by %s: %v", block, url, err), "curl "+url)
	}
	return nil
}

// askConsul returns why services cannot be registered, and how bad that is.
func askConsul(ctx context.Context, c service.Consul) (Status, error) {
	client, base, err := consulClient(c)
	if err != nil {
		return Fail, err
	}
	token := ""
	if c.TokenFile != "" {
		text, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return Fail, fmt.Errorf("its token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	var leader string
	if err := call(ctx, client, http.MethodGet, base+"/v1/status/leader", token, nil, &leader); err != nil {
		return Fail, err
	}
	if leader == "" {
		return Fail, errors.New("it has no leader")
	}
	type right struct {
		Resource, Access string
		Allow            bool `json:",omitempty"` // of the answer: Consul refuses a request with it
	}
	var rights []right
	err = call(ctx, client, http.MethodPost, base+"/v1/internal/acl/authorize", token,
		[]right{{Resource: "service", Access: "write"}}, &rights)
	if answer := (*answerError)(nil); errors.As(err, &answer) && strings.Contains(answer.text, "ACL support disabled") {
		return OK, nil
	}
	if err != nil {
		return Fail, fmt.Errorf("the token of %s: %w", cmp.Or(c.TokenFile, "nobody"), err)
	}
	if len(rights) != 1 || !rights[0].Allow {
		return Warn, fmt.Errorf("the token of %s may not register every service: those of workloads here must be among its rules",
			cmp.Or(c.TokenFile, "nobody"))
	}
	return OK, nil
}

// consulClient returns a client for an address in any of the forms of service.Consul, and the base of its URLs.
func consulClient(c service.Consul) (*http.Client, string, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport}
	if path, found := strings.CutPrefix(c.Address, "unix://"); found {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
		return client, "http://consul", nil
	}
	if !strings.Contains(c.Address, "://") {
		return client, "http://" + c.Address, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.TLSServerName}
	transport.TLSClientConfig = config
	if c.CAFile != "" {
		var err error
		if config.RootCAs, err = readRoots(c.CAFile); err != nil {
			return nil, "", err
		}
	}
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, "", err
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return client, c.Address, nil
}

func readRoots(file string) (*x509.CertPool, error) {
	text, err := cabundle.Read(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return roots, nil
}

// answerError is an answer other than 200.
type answerError struct {
	code int
	text string
}

func (e *answerError) Error() string { return fmt.Sprintf("it answers %d: %s", e.code, e.text) }

func call(ctx context.Context, client *http.Client, method, url, token string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("X-Consul-Token", token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return &answerError{resp.StatusCode, strings.TrimSpace(string(text))}
	}
	return json.Unmarshal(text, out)
}
