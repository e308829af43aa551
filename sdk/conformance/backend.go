package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/sdk/storage"
)

// backend is what calls are for. Kinds take the one or the other.
type backend struct {
	driver storage.Driver
	consul service.Consul
	marker string // begins the secrets that are passed
	dir    string // where paths lie that are not there
	proxy  string // that is registered, where the backend is real
	// patience is how long a plugin may wait for the backend in a question.
	patience time.Duration
}

func (b backend) path(name string) string { return filepath.Join(b.dir, name) }

// asked is the backend of questions: the real one where there is one.
func (r *run) asked() backend {
	if r.kind.missing(&r.cfg) == "" {
		return r.real()
	}
	return r.away()
}

func (r *run) real() backend {
	return backend{driver: r.cfg.Driver, consul: r.cfg.Consul, marker: r.secret, dir: filepath.Join(r.dir, "none"), proxy: r.cfg.ProxyID, patience: callTime / 2}
}

// away is a backend that is not there.
func (r *run) away() backend { return r.at(filepath.Join(r.dir, "away.sock"), r.secret) }

// at is a backend on a socket, with a secret to pass.
func (r *run) at(socket, secret string) backend {
	return backend{
		driver: storage.Driver{ID: "conformance", Endpoint: "unix://" + socket},
		consul: service.Consul{
			Name: service.DefaultConsul, Address: "unix://" + socket, GRPCAddress: "unix://" + socket,
			TokenFile: r.tokenFile(secret),
		},
		marker: secret, dir: filepath.Join(r.dir, "none"), proxy: "nobodys-sidecar-proxy", patience: hopeless / 2,
	}
}

// tokenFile has a secret that no Consul knows.
func (r *run) tokenFile(secret string) string {
	path := filepath.Join(r.dir, "token-"+secret[len(secret)-8:])
	if _, err := os.Stat(path); err != nil {
		tmp := path + ".new"
		r.mu.Lock()
		defer r.mu.Unlock()
		// A file that cannot be written shows as a call that fails.
		_ = os.WriteFile(tmp, []byte(secret+"\n"), 0o600)
		_ = os.Rename(tmp, path)
	}
	return path
}

// silent is a backend that takes connections and never answers, until the check is over.
func (r *run) silent(c *checking) (backend, error) {
	dir, err := r.folder()
	if err != nil {
		return backend{}, err
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return backend{}, fmt.Errorf("make a backend that does not answer: %w", err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		var conns []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				for _, conn := range conns {
					_ = conn.Close()
				}
				return
			}
			conns = append(conns, conn)
		}
	})
	c.ends(func() {
		_ = l.Close()
		serving.Wait()
	})
	return r.at(socket, r.secret), nil
}

// echo is a backend that refuses every request with all that it was sent, as text. It
// speaks HTTP: a driver's calls fail in another way there.
func (r *run) echo(c *checking, secret string) (at backend, socket string, err error) {
	dir, err := r.folder()
	if err != nil {
		return backend{}, "", err
	}
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return backend{}, "", fmt.Errorf("make a backend that repeats what it gets: %w", err)
	}
	srv := &http.Server{ReadHeaderTimeout: callTime, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body) // what there is of it
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "refused: %s %v %s", req.URL, req.Header, body)
	})}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			_ = l.Close()
		}
	})
	c.ends(func() {
		_ = srv.Close()
		serving.Wait()
	})
	return r.at(socket, secret), socket, nil
}
