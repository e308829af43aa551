package site

import (
	"net"
	"net/http"
	"net/url"
	"strings"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/plugins/web/internal/session"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// signInData is what the form has.
type signInData struct {
	To, Problem string
}

func (s *Site) signInForm(w http.ResponseWriter, r *http.Request) {
	s.showSignIn(w, r, http.StatusOK, "")
}

// showSignIn shows the form. It begins a session where there is none, since the form is bound to it.
func (s *Site) showSignIn(w http.ResponseWriter, r *http.Request, code int, problem string) {
	if s.shared(r) {
		at := url.URL{Scheme: "http", Host: s.Sessions.Name, Path: "/sign-in", RawQuery: url.Values{"to": {within(r.FormValue("to"))}}.Encode()}
		if _, port, err := net.SplitHostPort(r.Host); err == nil {
			at.Host = net.JoinHostPort(at.Host, port)
		}
		http.Redirect(w, r, at.String(), http.StatusSeeOther)
		return
	}
	u := s.who(r)
	if u.ID == "" {
		u.Session = s.Sessions.Begin("", "")
		if err := s.Sessions.Put(w, r, u.Session, s.overTLS(r)); err != nil {
			s.fail(w, r, u, http.StatusInternalServerError, err.Error())
			return
		}
	}
	s.write(w, code, s.of(r, u, "sign-in", signInData{within(r.FormValue("to")), problem}))
}

// within returns a path of these pages; what leads elsewhere becomes the first page.
func within(to string) string {
	if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") {
		return "/"
	}
	return to
}

// signIn checks a token, and begins a session with it.
func (s *Site) signIn(w http.ResponseWriter, r *http.Request) {
	before := s.who(r)
	if !s.Sessions.Posted(before.Session, r.PostFormValue("form")) || before.ID == "" {
		s.showSignIn(w, r, http.StatusForbidden, "This form was not of your session: try again.")
		return
	}
	secret := strings.TrimSpace(r.PostFormValue("token"))
	if secret == "" || len(secret) > session.MaxSecret {
		s.showSignIn(w, r, http.StatusBadRequest, "Enter the secret of an ACL token.")
		return
	}
	u := user{session.Session{Secret: secret}}
	self, err := s.host.ACL.GetACLSelf(u.as(r.Context()), &hostv1.GetACLSelfRequest{})
	switch {
	case connect.CodeOf(err) == connect.CodeFailedPrecondition: // ACLs are off: no token is needed
		http.Redirect(w, r, within(r.PostFormValue("to")), http.StatusSeeOther)
		return
	case u.signedOut(err):
		s.showSignIn(w, r, http.StatusUnauthorized, "No token has this secret, or it has expired.")
		return
	case err != nil:
		s.showSignIn(w, r, status(err), reason(err))
		return
	}
	// A session of its own: what was known of the one before is worth nothing now.
	begun := s.Sessions.Begin(secret, self.GetToken().GetName())
	if err := s.Sessions.Put(w, r, begun, s.overTLS(r)); err != nil {
		s.fail(w, r, before, http.StatusInternalServerError, err.Error())
		return
	}
	http.Redirect(w, r, within(r.PostFormValue("to")), http.StatusSeeOther)
}

// signOut ends the session in this browser. The token itself goes on.
func (s *Site) signOut(w http.ResponseWriter, r *http.Request) {
	u := s.who(r)
	if u.ID == "" || !s.Sessions.Posted(u.Session, r.PostFormValue("form")) {
		s.fail(w, r, u, http.StatusForbidden, "This form was not of your session: nothing was done.")
		return
	}
	if err := s.Sessions.Put(w, r, s.Sessions.Begin("", ""), s.overTLS(r)); err != nil {
		s.fail(w, r, u, http.StatusInternalServerError, err.Error())
		return
	}
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}
