package site

import (
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/pannier/pannier/plugins/web/internal/session"
	"github.com/pannier/pannier/plugins/web/internal/trend"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Config has the dependencies of a Site.
type Config struct {
	API      *api.Client
	Sessions *session.Keeper
	Trend    trend.Ring
	// Actions allows what changes something.
	Actions bool
	// ActionsWithoutACLs allows it where ACLs are off, too: not everybody on this machine reaches the socket.
	ActionsWithoutACLs bool
	// TLS is true if the listener has TLS. Port is true if it has a port of this host, beside others' ports.
	TLS, Port bool
	// Hosts are the names by which browsers may call the pages, besides localhost and IP addresses.
	Hosts []string
	// Stopping is closed when this process must finish: pages are not kept up to date any more, so that the browsers
	// connect to the next process.
	Stopping <-chan struct{}
	Log      *slog.Logger
}

// host is the agent, with the questions that need more than one call, or that more than one page asks.
type host struct{ *api.Client }

// Site serves the pages.
type Site struct {
	Config
	host    host
	pages   map[string]*template.Template
	streams chan struct{} // a slot of each page that is kept up to date
	usages  kept[*hostv1.VolumeUsage]
	others  kept[[]event]
}

const (
	// callTimeout bounds what a page asks the agent. While that restarts, calls wait.
	callTimeout = 10 * time.Second
	// maxStreams is how many pages are kept up to date at a time.
	maxStreams = 200
)

// New returns the pages.
func New(cfg Config) *Site {
	cfg.Hosts = append(slices.Clone(cfg.Hosts), cfg.Sessions.Name)
	return &Site{Config: cfg, host: host{cfg.API}, pages: parse(), streams: make(chan struct{}, maxStreams)}
}

// Handler serves them.
func (s *Site) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, v := range map[string]view{
		"/{$}":                        {"overview", s.overview, 3 * time.Second},
		"/volumes":                    {"volumes", s.volumes, 10 * time.Second},
		"/volumes/{namespace}/{id}":   {"volume", s.volume, 3 * time.Second},
		"/nodes":                      {"nodes", s.nodes, time.Second},
		"/nodes/{name}":               {"node", s.node, time.Second},
		"/workloads":                  {"workloads", s.workloads, 5 * time.Second},
		"/workloads/{namespace}/{id}": {"workload", s.workload, time.Second},
		"/plugins":                    {"plugins", s.plugins, 3 * time.Second},
		"/plugins/{name}":             {"plugin", s.plugin, 3 * time.Second},
		"/drivers":                    {"drivers", s.drivers, 5 * time.Second},
		"/drivers/{id}":               {"driver", s.driver, 5 * time.Second},
		"/services":                   {"services", s.services, 5 * time.Second},
		"/releases":                   {"releases", s.releases, 2 * time.Second},
		"/events":                     {"events", s.events, 5 * time.Second},
		"/checks":                     {"checks", s.checks, 10 * time.Second},
	} {
		mux.Handle("GET "+path, s.page(v))
	}
	mux.HandleFunc("GET /sign-in", s.signInForm)
	mux.HandleFunc("POST /sign-in", s.signIn)
	mux.HandleFunc("POST /sign-out", s.signOut)
	mux.HandleFunc("GET /do/{action}", s.confirm)
	mux.HandleFunc("POST /do/{action}", s.act)
	mux.HandleFunc("GET /static/{sum}/{name}", static)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, s.who(r), http.StatusNotFound, "There is no such page.")
	})
	return s.guard(mux)
}
