package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/pannier/pannier/internal/cabundle"
)

// defaultNomad is the default address of Nomad's API.
const defaultNomad = "http://127.0.0.1:4646"

const (
	// nomadTimeout bounds one request to Nomad.
	nomadTimeout = 30 * time.Second
	// maxNomadAnswer bounds an answer of Nomad's, in bytes.
	maxNomadAnswer = 64 << 20
	// nomadPage is how many volumes are listed at a time.
	nomadPage = 500
)

// nomadVolume is what the import reads of a volume (developer.hashicorp.com/nomad/api-docs/volumes).
type nomadVolume struct {
	ID         string
	Namespace  string
	Name       string
	ExternalID string
	PluginID   string

	AccessMode            string
	AttachmentMode        string
	RequestedCapabilities []struct{ AccessMode, AttachmentMode string }
	RequestedCapacityMin  int64
	RequestedCapacityMax  int64
	MountOptions          struct {
		FSType     string
		MountFlags []string
	}
	Secrets    map[string]string
	Parameters map[string]string
	Context    map[string]string
	Topologies []struct{ Segments map[string]string }

	ReadAllocs  map[string]json.RawMessage
	WriteAllocs map[string]json.RawMessage
	Allocations []struct{ ID, JobID string }
}

// nomadServer calls Nomad's HTTP API.
type nomadServer struct {
	client *http.Client
	base   string
	token  string
}

// dialNomad returns the Nomad that the flags or else the environment name. Nothing is called yet.
func dialNomad(address, tokenFile string) (*nomadServer, error) {
	s := &nomadServer{token: os.Getenv("NOMAD_TOKEN")}
	if tokenFile != "" {
		secret, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read Nomad's token: %w", err)
		}
		s.token = strings.TrimSpace(string(secret))
	}
	address = strings.TrimSuffix(cmp.Or(address, os.Getenv("NOMAD_ADDR"), defaultNomad), "/")
	transport := &http.Transport{}
	if path, local := strings.CutPrefix(address, "unix://"); local {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		address = "http://127.0.0.1"
	}
	if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("the address of Nomad, %q, is neither http://HOST:PORT, https://HOST:PORT nor unix:///PATH",
			address)
	}
	s.base = address
	config := &tls.Config{ServerName: os.Getenv("NOMAD_TLS_SERVER_NAME"), MinVersion: tls.VersionTLS12}
	if path := os.Getenv("NOMAD_CACERT"); path != "" {
		ca, err := cabundle.Read(path)
		if err != nil {
			return nil, fmt.Errorf("NOMAD_CACERT: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(ca)
	}
	if cert, key := os.Getenv("NOMAD_CLIENT_CERT"), os.Getenv("NOMAD_CLIENT_KEY"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	transport.TLSClientConfig = config
	s.client = &http.Client{Transport: transport, Timeout: nomadTimeout}
	return s, nil
}

// volumes reads all CSI volumes of a namespace, or of all ("*").
func (s *nomadServer) volumes(ctx context.Context, namespace string) ([]nomadVolume, error) {
	var all []nomadVolume
	query := url.Values{"type": {"csi"}, "namespace": {namespace}, "per_page": {fmt.Sprint(nomadPage)}}
	for {
		var stubs []nomadVolume
		next, err := s.get(ctx, "/v1/volumes", query, &stubs)
		if err != nil {
			return nil, err
		}
		for _, stub := range stubs {
			var v nomadVolume
			_, err := s.get(ctx, "/v1/volume/csi/"+url.PathEscape(stub.ID), url.Values{"namespace": {stub.Namespace}}, &v)
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		if next == "" {
			return all, nil
		}
		query.Set("next_token", next)
	}
}

// get reads one answer, and returns the token of its next page.
func (s *nomadServer) get(ctx context.Context, path string, query url.Values, into any) (next string, err error) {
	if region := os.Getenv("NOMAD_REGION"); region != "" {
		query.Set("region", region)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	if s.token != "" {
		req.Header.Set("X-Nomad-Token", s.token)
	}
	res, err := s.client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxNomadAnswer))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the answer to GET %s: %w", path, err)
	case res.StatusCode == http.StatusForbidden:
		return "", fmt.Errorf("GET %s: Nomad refuses it: %s; the token in NOMAD_TOKEN or -nomad-token-file needs "+
			"csi-list-volume and csi-read-volume", path, strings.TrimSpace(string(body)))
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("GET %s: Nomad answers %s: %.200s", path, res.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return "", fmt.Errorf("GET %s: the answer is not Nomad's: %w", path, err)
	}
	return res.Header.Get("X-Nomad-Nexttoken"), nil
}
