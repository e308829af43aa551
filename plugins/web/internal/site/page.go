package site

import (
	"bytes"
	"cmp"
	"context"
	"hash/maphash"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// view is a page: its template, what it shows, and how often it is remade when nothing is known to have changed, for
// what changes with time alone.
type view struct {
	name  string
	show  func(ctx context.Context, u user, r *http.Request) (any, error)
	every time.Duration
}

// page is what the layout has.
type page struct {
	Name, Title string
	Path        string // with the query
	User        user
	Form        string // the token of the user's forms
	Actions     bool
	Live        string // where the page is kept up to date; empty: nowhere
	Data        any
	Code        int
	Error       string
}

// liveParam asks for a page as a stream.
const liveParam = "live"

func (s *Site) page(v view) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := s.who(r)
		if r.URL.Query().Has(liveParam) {
			s.stream(w, r, u, v)
			return
		}
		data, err := s.look(r, u, v)
		switch {
		case u.signedOut(err):
			s.toSignIn(w, r)
		case err != nil && status(err) < http.StatusInternalServerError:
			s.fail(w, r, u, status(err), reason(err))
		default:
			p, code := s.of(r, u, v.name, data), http.StatusOK
			if err != nil { // the agent may be restarting: the page comes when it is back
				code = status(err)
				p.Name, p.Code, p.Error = "error", code, reason(err)
			}
			query := r.URL.Query()
			query.Set(liveParam, "1")
			p.Live = r.URL.Path + "?" + query.Encode()
			s.write(w, code, p)
		}
	})
}

// look asks for what a page shows. All its calls are the user's, by their context.
func (s *Site) look(r *http.Request, u user, v view) (any, error) {
	ctx, cancel := context.WithTimeout(u.as(r.Context()), callTimeout)
	defer cancel()
	return v.show(ctx, u, r)
}

// of returns a page of a user. The title of an object's page begins with its name, so that tabs can be told apart.
func (s *Site) of(r *http.Request, u user, name string, data any) page {
	query := r.URL.Query()
	query.Del(liveParam)
	path := r.URL.Path
	if q := query.Encode(); q != "" {
		path += "?" + q
	}
	title := titles[name]
	if object := cmp.Or(r.PathValue("id"), r.PathValue("name")); object != "" {
		title = object + " – " + title
	}
	return page{
		Name: name, Title: title, Path: path, User: u, Form: s.Sessions.FormToken(u.Session),
		Actions: s.Actions, Data: data,
	}
}

// write renders a page. It is rendered whole first, so that an error of a template is not half a page.
func (s *Site) write(w http.ResponseWriter, code int, p page) {
	var text bytes.Buffer
	if err := s.pages[p.Name].ExecuteTemplate(&text, "layout", p); err != nil {
		s.Log.Error("a page cannot be rendered", "page", p.Name, "error", err)
		http.Error(w, "This page cannot be shown; the plugin's log says why.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(text.Bytes()) // an error: the reader is gone
}

// fail shows an error in place of a page.
func (s *Site) fail(w http.ResponseWriter, r *http.Request, u user, code int, text string) {
	p := s.of(r, u, "error", nil)
	p.Code, p.Error = code, text
	s.write(w, code, p)
}

// toSignIn sends the user to the form, and back afterwards.
func (s *Site) toSignIn(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "/sign-in?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
}

// settle is how long changes are collected before a page is remade.
const settle = 100 * time.Millisecond

// stream sends the content of a page whenever it is another one, as server-sent events. It ends when the reader is
// gone, the session or the token ends, or the process finishes.
func (s *Site) stream(w http.ResponseWriter, r *http.Request, u user, v view) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		http.Error(w, "Too many pages are kept up to date.", http.StatusServiceUnavailable)
		return
	}
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(r.Context())
	if u.ID != "" {
		ctx, cancel = context.WithDeadline(r.Context(), u.Idle)
	}
	defer cancel()
	changed := s.host.watch(u.as(ctx), nodeOf(r), &following)
	tick := time.NewTicker(v.every)
	defer tick.Stop()
	control := http.NewResponseController(w)
	// The deadline of the last message may be over, and the end of the answer has to be written too.
	defer func() { _ = control.SetWriteDeadline(time.Now().Add(callTimeout)) }() // an error: it has no end
	seed, last := maphash.MakeSeed(), uint64(0)
	for {
		data, err := s.look(r, u, v)
		if u.signedOut(err) && last == 0 {
			http.Error(w, "Sign in first.", http.StatusUnauthorized)
			return
		}
		if u.signedOut(err) || ctx.Err() != nil {
			return
		}
		var text bytes.Buffer
		p := s.of(r, u, v.name, data)
		part := "main"
		if err != nil {
			p.Name, p.Code, p.Error = "error", status(err), reason(err)
		}
		if err := s.pages[p.Name].ExecuteTemplate(&text, part, p); err != nil {
			s.Log.Error("a page cannot be rendered", "page", v.name, "error", err)
			return
		}
		if sum := maphash.Bytes(seed, text.Bytes()); sum != last {
			if last == 0 {
				w.Header().Set("Content-Type", "text/event-stream")
			}
			last = sum
			if control.SetWriteDeadline(time.Now().Add(callTimeout)) != nil {
				return
			}
			if _, err := w.Write(message(text.Bytes())); err != nil || control.Flush() != nil {
				return
			}
		}
		select {
		case <-tick.C:
		case <-changed:
			select { // what belongs to one change comes in one message
			case <-time.After(settle):
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		case <-s.Stopping:
			return
		}
	}
}

// message is an unnamed server-sent event. CR, LF and CRLF each end a line of a stream
// (https://html.spec.whatwg.org/multipage/server-sent-events.html, 9.2.6), as they do in a page.
func message(text []byte) []byte {
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimRight(string(text), "\r\n")), "\n")
	return []byte("data: " + strings.Join(lines, "\ndata: ") + "\n\n")
}

// stream is one of the API's.
type stream interface {
	Receive() bool
	Err() error
	Close() error
}

// watch returns a channel that has a value after something may have changed: in the ledger, or on a node; an empty name
// is this one's.
func (h host) watch(ctx context.Context, node string, following *sync.WaitGroup) <-chan struct{} {
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	follow := func(open func() (stream, error)) {
		following.Go(func() {
			for ctx.Err() == nil {
				if from, err := open(); err == nil { // the token may not, or the leader has changed
					for from.Receive() {
						tell()
					}
					if from.Err() == nil {
						tell()
					}
					_ = from.Close() // it has ended
				}
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		})
	}
	follow(func() (stream, error) {
		return h.System.Watch(ctx, &hostv1.WatchRequest{
			Topics: []string{"volumes", "claims", "nodes", "workloads", "drivers"},
		})
	})
	follow(func() (stream, error) { return h.Agent.Events(ctx, &hostv1.EventsRequest{Follow: true, Node: node}) })
	return changed
}
