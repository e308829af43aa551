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

// backend is what calls are made for: a CSI driver or a Consul, depending on the kind.
type backend struct {
	r      *run
	driver storage.Driver
	consul service.Consul
	marker string // prefix of the secrets that are passed
	dir    string // directory of paths that do not exist
	proxy  string // a registered proxy, if the backend is real
	// patience is how long a plugin may wait for the backend during ask.
	patience time.Duration
}

func (b backend) path(name string) string { return filepath.Join(b.dir, name) }

// asked returns the backend for ask: the real one if there is one.
func (r *run) asked() backend {
	if r.kind.missing(&r.cfg) == "" {
		return r.real()
	}
	return r.away()
}

func (r *run) real() backend {
	return backend{
		r: r, driver: r.cfg.Driver, consul: r.cfg.Consul, marker: r.secret, dir: filepath.Join(r.dir, "none"),
		proxy: r.cfg.ProxyID, patience: callTime / 2,
	}
}

// away returns a backend that does not exist.
func (r *run) away() backend { return r.at(filepath.Join(r.dir, "away.sock"), r.secret) }

// at returns a backend on a socket, with a secret to pass.
func (r *run) at(socket, secret string) backend {
	return backend{
		r: r, driver: storage.Driver{ID: "conformance", Endpoint: "unix://" + socket},
		consul: service.Consul{
			Name: service.DefaultConsul, Address: "unix://" + socket, GRPCAddress: "unix://" + socket,
			TokenFile: r.tokenFile(secret),
		},
		marker: secret, dir: filepath.Join(r.dir, "none"), proxy: "nobodys-sidecar-proxy", patience: hopeless / 2,
	}
}

// tokenFile returns the path of a file with a secret that no Consul knows.
func (r *run) tokenFile(secret string) string {
	path := filepath.Join(r.dir, "token-"+secret[len(secret)-8:])
	if _, err := os.Stat(path); err != nil {
		tmp := path + ".new"
		r.mu.Lock()
		defer r.mu.Unlock()
		// If the file cannot be written, the call that reads it fails.
		_ = os.WriteFile(tmp, []byte(secret+"\n"), 0o600)
		_ = os.Rename(tmp, path)
	}
	return path
}

// silent returns a backend that accepts connections and never answers, until the check is over.
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

// echo returns a backend that refuses every request and quotes all that it was sent. It speaks HTTP; calls of a
// CSI driver fail for that reason.
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
	srv := &http.Server{
		ReadHeaderTimeout: callTime,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body) // as much as was sent
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, "refused: %s %v %s", req.URL, req.Header, body)
		}),
	}
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
