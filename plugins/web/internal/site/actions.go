package site

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// target is what an action is about.
type target struct{ Namespace, ID, Node string }

// action is a change that a user may ask for.
type action struct {
	title  string // of its button
	text   string // what happens, with the target's name for %s
	danger bool
	// typed: the user types the target's name first.
	typed bool
	// command is what does the same at a shell.
	command func(t target) string
	do      func(ctx context.Context, host *api.Client, t target) error
	// stops names the workloads that it stops; nil: it stops none.
	stops func(ctx context.Context, host *api.Client, t target) ([]string, error)
	// back is the page of the target, and gone is true if it is not there afterwards.
	back func(t target) string
	gone bool
}

// actions by their name in the address.
var actions = map[string]action{
	"detach": {
		title: "Detach", danger: true, back: volumePage,
		text: "What has the volume %s on this node is stopped there, and its claim is released.",
		stops: func(ctx context.Context, host *api.Client, t target) ([]string, error) {
			res, err := host.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: t.Namespace, Id: t.ID})
			return stoppedBy(nil, slices.DeleteFunc(res.GetVolume().GetClaims(), func(c *hostv1.Claim) bool {
				return c.GetNode() != t.Node
			})), err
		},
		command: func(t target) string {
			return "pannier volume detach" + inNamespace(t) + " " + t.ID + " " + t.Node
		},
		do: func(ctx context.Context, host *api.Client, t target) error {
			ctx, cancel := context.WithTimeout(ctx, detachWait)
			defer cancel()
			res, err := host.Volumes.DetachVolume(ctx,
				&hostv1.DetachVolumeRequest{Namespace: t.Namespace, Id: t.ID, Node: t.Node})
			if connect.CodeOf(err) == connect.CodeDeadlineExceeded {
				return nil // the release goes on, and the volume's page shows it
			}
			if err != nil {
				return err
			}
			for _, c := range res.GetClaims() {
				if !c.GetReleased() {
					return connect.NewError(connect.CodeFailedPrecondition,
						fmt.Errorf("the claim of workload %q was not released: %s", c.GetClaim().GetWorkload(), c.GetMessage()))
				}
			}
			return nil
		},
	},
	"snapshot": {
		title: "Take a snapshot", back: volumePage,
		text:    "The driver takes a snapshot of the volume %s as it is now.",
		command: func(t target) string { return "pannier volume snapshot create" + inNamespace(t) + " " + t.ID },
		do: func(ctx context.Context, host *api.Client, t target) error {
			return errOf(host.Volumes.CreateSnapshot(ctx, &hostv1.CreateSnapshotRequest{Namespace: t.Namespace, VolumeId: t.ID}))
		},
	},
	"delete": {
		title: "Delete", danger: true, typed: true, gone: true, back: func(target) string { return "/volumes" },
		text:    "The volume %s and all its data are deleted at the driver. This cannot be undone.",
		command: func(t target) string { return "pannier volume delete" + inNamespace(t) + " " + t.ID },
		do: func(ctx context.Context, host *api.Client, t target) error {
			return errOf(host.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{Namespace: t.Namespace, Id: t.ID}))
		},
	},
	"drain": {
		title: "Drain", danger: true, back: nodePage,
		text:    "The node %s stops all its workloads, the last started first, and starts none until the drain is ended.",
		command: func(t target) string { return "pannier node drain -enable " + t.ID },
		stops: func(ctx context.Context, host *api.Client, t target) ([]string, error) {
			res, err := host.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: t.ID})
			return stoppedBy(res.GetWorkloads(), res.GetClaims()), err
		},
		do: func(ctx context.Context, host *api.Client, t target) error {
			return errOf(host.Nodes.DrainNode(ctx, &hostv1.DrainNodeRequest{Name: t.ID, Enable: true}))
		},
	},
	"undrain": {
		title: "End the drain", back: nodePage,
		text:    "The node %s may start workloads again.",
		command: func(t target) string { return "pannier node drain -disable " + t.ID },
		do: func(ctx context.Context, host *api.Client, t target) error {
			return errOf(host.Nodes.DrainNode(ctx, &hostv1.DrainNodeRequest{Name: t.ID}))
		},
	},
	"swap": {
		title: "Swap in the file of the plugin directory", back: pluginPage,
		text:    "The binary of the plugin %s in the plugin directory takes over. If it cannot, the present process goes on.",
		command: func(t target) string { return "pannier plugin swap " + t.ID },
		do: func(ctx context.Context, host *api.Client, t target) error {
			return errOf(host.Plugins.SwapPlugin(ctx, &hostv1.SwapPluginRequest{Name: t.ID}))
		},
	},
	"rollback": {
		title: "Roll back", danger: true, back: pluginPage,
		text:    "The copy of the plugin %s that served before takes over, and the present one is refused until its file changes. A canary only ends.",
		command: func(t target) string { return "pannier plugin rollback " + t.ID },
		do: func(ctx context.Context, host *api.Client, t target) error {
			return errOf(host.Plugins.RollbackPlugin(ctx, &hostv1.RollbackPluginRequest{Name: t.ID}))
		},
	},
	"promote": {
		title: "Promote the canary", back: pluginPage,
		text:    "The canary of the plugin %s gets all calls.",
		command: func(t target) string { return "pannier plugin promote " + t.ID },
		do: func(ctx context.Context, host *api.Client, t target) error {
			return errOf(host.Plugins.PromotePlugin(ctx, &hostv1.PromotePluginRequest{Name: t.ID}))
		},
	},
}

// errOf is the error of a call.
func errOf[A any](_ A, err error) error { return err }

func volumePage(t target) string { return objectURL("volumes", t.Namespace, t.ID) }
func nodePage(t target) string   { return objectlessURL("nodes", t.ID) }
func pluginPage(t target) string { return objectlessURL("plugins", t.ID) }

func inNamespace(t target) string {
	if t.Namespace == "" || t.Namespace == defaultNamespace {
		return ""
	}
	return " -namespace " + t.Namespace
}

// detachWait is how long the answer to a detach waits for the release.
const detachWait = 5 * time.Second

// actionTimeout bounds an action. It goes on at the host when the page gives up.
const actionTimeout = 3 * time.Minute

type confirmData struct {
	Action, Title, Text, Command, Back string
	Target                             target
	Danger, Typed                      bool
	Problem                            string
	// Asked is true if the action stops workloads: Stops. StopsWhy explains why these are not known.
	Asked    bool
	Stops    []string
	StopsWhy string
}

// stoppedBy names the workloads, and the workloads that have the claims, each once.
func stoppedBy(workloads []*hostv1.NodeWorkload, claims []*hostv1.Claim) (names []string) {
	for _, w := range workloads {
		names = append(names, qualified(w.GetNamespace(), w.GetId()))
	}
	for _, c := range claims {
		names = append(names, qualified(c.GetNamespace(), c.GetWorkload()))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// confirm shows what an action does, with the form that does it.
func (s *Site) confirm(w http.ResponseWriter, r *http.Request) {
	u := s.who(r)
	if u.ID == "" { // where ACLs are off nobody signs in, but a form needs a session
		if !s.Actions || !s.aclsOff(r, u) {
			s.toSignIn(w, r)
			return
		}
		u.Session = s.Sessions.Begin("", "")
		if err := s.Sessions.Put(w, r, u.Session, s.overTLS(r)); err != nil {
			s.fail(w, r, u, http.StatusInternalServerError, err.Error())
			return
		}
	}
	s.ask(w, r, u, http.StatusOK, "")
}

// ask shows an action's form, with what was wrong with it the last time.
func (s *Site) ask(w http.ResponseWriter, r *http.Request, u user, code int, problem string) {
	a, t, ok := s.actionOf(w, r, u)
	if !ok {
		return
	}
	d := confirmData{
		Action: r.PathValue("action"), Title: a.title, Text: fmt.Sprintf(a.text, qualified(t.Namespace, t.ID)),
		Command: a.command(t), Back: within(backOr(a, t)), Target: t, Danger: a.danger, Typed: a.typed, Problem: problem,
	}
	if a.stops != nil {
		ctx, cancel := context.WithTimeout(u.as(r.Context()), callTimeout)
		defer cancel()
		stops, err := a.stops(ctx, s.API, t)
		d.Asked, d.Stops, d.StopsWhy = true, stops, reason(err)
	}
	s.write(w, code, s.of(r, u, "confirm", d))
}

func backOr(a action, t target) string {
	if a.gone {
		return volumePage(t)
	}
	return a.back(t)
}

// actionOf returns the action of a request, or answers why there is none.
func (s *Site) actionOf(w http.ResponseWriter, r *http.Request, u user) (a action, t target, ok bool) {
	a, known := actions[r.PathValue("action")]
	t = target{r.FormValue("namespace"), r.FormValue("id"), r.FormValue("node")}
	switch {
	case !s.Actions:
		s.fail(w, r, u, http.StatusForbidden, "These pages change nothing: actions = true is not in the config block of plugin \"web\".")
	case !known || t.ID == "":
		s.fail(w, r, u, http.StatusNotFound, "There is no such action.")
	default:
		return a, t, true
	}
	return a, t, false
}

// aclsOff reports whether ACLs are off and actions are allowed all the same.
func (s *Site) aclsOff(r *http.Request, u user) bool {
	ctx, cancel := context.WithTimeout(u.as(r.Context()), callTimeout)
	defer cancel()
	if !s.ActionsWithoutACLs {
		return false
	}
	_, err := s.host.ACL.GetACLSelf(ctx, &hostv1.GetACLSelfRequest{})
	return connect.CodeOf(err) == connect.CodeFailedPrecondition
}

// act does what the form of a session asks for.
func (s *Site) act(w http.ResponseWriter, r *http.Request) {
	u := s.who(r)
	if u.ID == "" || !s.Sessions.Posted(u.Session, r.PostFormValue("form")) {
		s.fail(w, r, u, http.StatusForbidden, "This form was not of your session: nothing was done.")
		return
	}
	a, t, ok := s.actionOf(w, r, u)
	if !ok {
		return
	}
	if u.Secret == "" && !s.aclsOff(r, u) {
		s.fail(w, r, u, http.StatusForbidden, "Sign in first. Where ACLs are off, actions need a unix socket in the listen block: "+
			"every user of this host can reach another one.")
		return
	}
	if name := qualified(t.Namespace, t.ID); a.typed && strings.TrimSpace(r.PostFormValue("typed")) != name {
		s.ask(w, r, u, http.StatusBadRequest, "What you typed is not "+name+": nothing was done.")
		return
	}
	ctx, cancel := context.WithTimeout(u.as(r.Context()), actionTimeout)
	defer cancel()
	err := a.do(ctx, s.API, t)
	switch {
	case u.signedOut(err):
		http.Redirect(w, r, "/sign-in?to="+url.QueryEscape(backOr(a, t)), http.StatusSeeOther)
	case err != nil:
		s.ask(w, r, u, status(err), reason(err))
	default:
		s.Log.Info("an action was done", "action", r.PathValue("action"), "on", qualified(t.Namespace, t.ID), "token", u.Name)
		http.Redirect(w, r, a.back(t), http.StatusSeeOther)
	}
}
