package pki_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

type agent struct {
	hostv1connect.UnimplementedAgentServiceHandler
}

func (agent) Status(context.Context, *hostv1.StatusRequest) (*hostv1.StatusResponse, error) {
	return &hostv1.StatusResponse{Name: "n"}, nil
}

// seen has what an agent knows about a caller.
type seen struct {
	protocol, token string
	who             pki.Identity
}

// serveTLS answers over https as an agent does.
func serveTLS(t *testing.T, certs *pki.Certs) (address string, calls <-chan seen) {
	t.Helper()
	got := make(chan seen, 16)
	mux := http.NewServeMux()
	mux.Handle(hostv1connect.NewAgentServiceHandler(agent{}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		TLSConfig: certs.Public("h2", "http/1.1"),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, err := certs.PeerOf(*r.TLS)
			if err != nil && !errors.Is(err, pki.ErrNoCertificate) {
				t.Error(err)
			}
			got <- seen{r.Proto, r.Header.Get(api.TokenHeader), who}
			mux.ServeHTTP(w, r)
		}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeTLS(l, "", "")
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return "https://" + l.Addr().String(), got
}

func TestOverTLS(t *testing.T) {
	ca, other := pkitest.New(t), pkitest.New(t)
	address, calls := serveTLS(t, ca.Certs(t, pki.Server, "a"))
	mine, strangers := ca.Files(t, pki.CLI, "ops"), other.Files(t, pki.CLI, "ops")
	ops := pki.Identity{Name: "ops", Role: pki.CLI, DC: pkitest.DC}
	for name, c := range map[string]struct {
		tls  api.TLS
		who  pki.Identity
		want string // of the error; empty: it is answered
	}{
		"with a certificate": {api.TLS{CAFile: ca.CertFile, CertFile: mine.Cert, KeyFile: mine.Key}, ops, ""},
		"without":            {api.TLS{CAFile: ca.CertFile}, pki.Identity{}, ""},
		"by another name":    {api.TLS{CAFile: ca.CertFile, ServerName: "server.dc1.pannier"}, pki.Identity{}, ""},
		"a stranger is nobody": {
			api.TLS{CAFile: ca.CertFile, CertFile: strangers.Cert, KeyFile: strangers.Key},
			pki.Identity{},
			"",
		},
		"an agent of a stranger": {
			api.TLS{CAFile: other.CertFile},
			pki.Identity{},
			"is not believed: x509: certificate signed by unknown authority; set PANNIER_CACERT",
		},
		"an agent of another name": {
			api.TLS{CAFile: ca.CertFile, ServerName: "node.dc1.pannier"},
			pki.Identity{},
			"PANNIER_TLS_SERVER_NAME",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := api.New(address, api.WithTLS(c.tls), api.WithToken("the-secret"))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			status, err := client.Agent.Status(t.Context(), &hostv1.StatusRequest{})
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				return
			}
			if err != nil || status.GetName() != "n" {
				t.Fatalf("got %v, %v", status, err)
			}
			if call := <-calls; call != (seen{"HTTP/2.0", "the-secret", c.who}) {
				t.Errorf("the agent saw %+v", call)
			}
		})
	}
}

func TestTLSFilesThatCannotBeUsed(t *testing.T) {
	ca := pkitest.New(t)
	files := ca.Files(t, pki.CLI, "ops")
	none := filepath.Join(t.TempDir(), "none")
	for want, c := range map[string]api.TLS{
		"(PANNIER_CACERT): open " + none:                             {CAFile: none},
		"(PANNIER_CACERT): " + files.Key + " has no certificate":     {CAFile: files.Key},
		"(PANNIER_CLIENT_CERT and PANNIER_CLIENT_KEY, both or none)": {CertFile: files.Cert},
	} {
		if _, err := api.New("https://127.0.0.1:1", api.WithTLS(c)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if _, err := api.New("unix:///s", api.WithTLS(c)); err != nil {
			t.Errorf("over a socket: %v", err)
		}
	}
}
