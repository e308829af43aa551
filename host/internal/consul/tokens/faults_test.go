package tokens

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

var (
	minting = service.Consul{Name: "default", Address: "127.0.0.1:1"}
	login   = service.Consul{Name: "login", Address: "127.0.0.1:1", AuthMethod: "pannier"}
)

func TestWhoMayDerive(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting)
	mine := w.start("w", "a", "default", "web")[0]
	ended := w.start("ended", "a", "default", "web")[0]
	w.stop("ended")
	moved := w.start("moved", "a", "default", "web")[0]
	w.stop("moved")
	w.start("moved", "b", "default", "web")
	again := w.start("again", "a", "default", "web")[0]
	w.stop("again")
	w.start("again", "a", "default", "web")
	elsewhere := w.start("elsewhere", "a", "other", "web")[0]
	for name, row := range map[string]struct {
		change func(*claim.Token)
		of     claim.Token
		code   codes.Code
		says   string
	}{
		"not noted": {
			func(c *claim.Token) { c.ID = w.nextID() }, mine, codes.FailedPrecondition,
			"token not found",
		},
		"another service": {
			func(c *claim.Token) { c.Service = "admin" }, mine, codes.PermissionDenied,
			"another purpose",
		},
		"another workload": {
			func(c *claim.Token) { c.Workload = ref("x") }, mine, codes.PermissionDenied,
			"another purpose",
		},
		"another node": {func(c *claim.Token) { c.Node = "b" }, mine, codes.PermissionDenied, "another purpose"},
		"another Consul": {
			func(c *claim.Token) { c.Consul = "other" }, mine, codes.PermissionDenied,
			"another purpose",
		},
		"ended":           {nil, ended, codes.FailedPrecondition, `workload "ended" has ended`},
		"runs elsewhere":  {nil, moved, codes.FailedPrecondition, `workload "moved" runs on node "b", not on node "a"`},
		"of a run before": {nil, again, codes.FailedPrecondition, `workload "again" was started again`},
		"a Consul of no block": {
			nil, elsewhere, codes.FailedPrecondition,
			`no consul block is named "other": known are default`,
		},
	} {
		ask := row.of
		if row.change != nil {
			row.change(&ask)
		}
		derived, secret, err := w.Derive(w.within(), ask)
		if status.Code(err) != row.code || !strings.Contains(err.Error(), row.says) || secret != "" ||
			derived != (claim.Token{}) {
			t.Errorf("%s: %s %v, want %s with %q", name, status.Code(err), err, row.code, row.says)
		}
	}
	if n := f.count("derive"); n != 0 {
		t.Errorf("Consul was asked %d times", n)
	}
	other := mine
	other.Workload = ref("x")
	if err := w.Revoke(w.within(), other, ""); status.Code(err) != codes.PermissionDenied || f.count("revoke") != 0 {
		t.Errorf("revoke another workload's: %v", err)
	}
	if err := w.Intend(w.within(),
		claim.Token{
			ID: w.nextID(), Workload: ref("ended"), Node: "a", Service: "web",
			Consul: "default",
		}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("intent of an ended workload: %v", err)
	}
	if err := w.Intend(w.within(), elsewhere); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("intent for a Consul of no block: %v", err)
	}
	if err := w.Read(w.within(), claim.Token{Consul: "other"}, "secret"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("read from a Consul of no block: %v", err)
	}
}

// failing is a ledger with injected failures.
type failing struct {
	Ledger
	put, delete error
}

func (f *failing) Apply(ctx context.Context, c command.Command) (any, error) {
	switch c.(type) {
	case *command.PutToken:
		if f.put != nil {
			return nil, f.put
		}
	case *command.DeleteTokens:
		if f.delete != nil {
			return nil, f.delete
		}
	}
	return f.Ledger.Apply(ctx, c)
}

// TestCodes checks that the codes tell callers whether to retry.
func TestCodes(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting, login)
	l := &failing{Ledger: w.Ledger}
	w.Ledger = l
	token := w.start("w", "a", "default", "web")[0]
	for _, code := range []codes.Code{
		codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted,
		codes.PermissionDenied, codes.Internal,
	} {
		f.fail["derive"], f.fail["read"], f.fail["revoke"] = status.Error(code, "Consul"), status.Error(code,
			"Consul"), status.Error(code, "Consul")
		_, _, err := w.Derive(w.within(), token)
		for call, err := range map[string]error{
			"derive": err, "read": w.Read(w.within(), claim.Token{Consul: "default"}, "s"),
			"revoke": w.Revoke(w.within(), token, ""),
		} {
			if status.Code(err) != code {
				t.Errorf("%s: %s (%v), want %s", call, status.Code(err), err, code)
			}
		}
	}
	clear(f.fail)
	w.derive(token) // it is in doubt no more
	for code, fault := range map[codes.Code]error{
		codes.Unavailable: command.ErrNotLeader, codes.ResourceExhausted: command.ErrDiskFull,
		codes.FailedPrecondition: claim.ErrConflict, codes.InvalidArgument: claim.ErrInvalid,
	} {
		l.put, l.delete = fmt.Errorf("ledger: %w", fault), fmt.Errorf("ledger: %w", fault)
		for call, err := range map[string]error{
			"intend": w.Intend(w.within(), token),
			"revoke": w.Revoke(w.within(), token, ""),
		} {
			if status.Code(err) != code || !errors.Is(err, fault) {
				t.Errorf("%s: %s (%v), want %s", call, status.Code(err), err, code)
			}
		}
	}
	l.put, l.delete = nil, nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := w.Derive(ctx, token); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, _, err := w.Derive(w.within(), token); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// TestDoubt checks that the record of a token that Consul did not answer for stays until a sweep, because the
// token may still be made.
func TestDoubt(t *testing.T) {
	for code, kept := range map[codes.Code]bool{
		codes.Unavailable: true, codes.DeadlineExceeded: true, codes.Canceled: true, codes.Internal: true,
		codes.PermissionDenied: false, codes.FailedPrecondition: false, codes.ResourceExhausted: false,
	} {
		t.Run(code.String(), func(t *testing.T) {
			f := newFake()
			w := newWorld(t, f.ask, minting)
			token := w.start("w", "a", "default", "web")[0]
			f.fail["derive"] = status.Error(code, "Consul")
			if _, _, err := w.Derive(w.within(), token); status.Code(err) != code {
				t.Errorf("derive: %v", err)
			}
			check.NoError(t, w.Revoke(w.within(), token, ""))
			if is := len(w.noted()) == 1; is != kept {
				t.Errorf("kept: %v", is)
			}
			w.stop("w")
			if w.sweep(false); len(w.noted()) != 0 || len(w.doubtful) != 0 {
				t.Errorf("after a sweep the ledger has %v, in doubt are %v", w.noted(), w.doubtful)
			}
		})
	}
}

// TestLoginThatCannotBeNoted checks that such a token is revoked, because nobody would know of it.
func TestLoginThatCannotBeNoted(t *testing.T) {
	for name, fail := range map[string]func(w *world, f *fake){
		"the ledger fails":   func(w *world, _ *fake) { w.Ledger = &failing{Ledger: w.Ledger, put: command.ErrUncertain} },
		"the workload ended": func(w *world, f *fake) { f.after["derive"] = func(context.Context) { w.forget() } },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			w := newWorld(t, f.ask, login)
			token := w.start("w", "a", "login", "web")[0]
			fail(w, f)
			_, secret, err := w.Derive(w.within(), token)
			if err == nil || secret != "" {
				t.Errorf("derived: %v", err)
			}
			if has := f.has("login"); len(has) != 0 {
				t.Errorf("Consul has %v", has)
			}
		})
	}
}

// TestLoginOfACallerThatGivesUp checks that its outcome is known: a token is recorded and can be revoked, and nothing
// is in doubt after a refusal.
func TestLoginOfACallerThatGivesUp(t *testing.T) {
	for name, answer := range map[string]error{
		"made":    nil,
		"refused": status.Error(codes.PermissionDenied, "no binding rule"),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			w := newWorld(t, f.ask, login)
			token := w.start("w", "a", "login", "web")[0]
			ctx, giveUp := context.WithCancel(w.within())
			f.before["derive"] = func(ctx context.Context) {
				giveUp()
				if f.fail["derive"] = answer; ctx.Err() != nil {
					f.fail["derive"] = status.FromContextError(ctx.Err()).Err()
				}
			}
			_, secret, err := w.Derive(ctx, token)
			if status.Code(err) != status.Code(answer) {
				t.Errorf("derive: %v, want %v", err, answer)
			}
			if err == nil {
				check.NoError(t, w.Revoke(w.within(), token, secret))
			} else {
				check.NoError(t, w.Forget(w.within(), token))
			}
			if len(w.noted())+len(f.has("login"))+len(w.doubtful) != 0 {
				t.Errorf("the ledger has %v, Consul %v, in doubt are %v", w.noted(), f.has("login"), w.doubtful)
			}
		})
	}
}

func TestOutliving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		longer, done := outliving(ctx, time.Minute)
		defer done()
		cancel()
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		if err := longer.Err(); err != nil {
			t.Errorf("before the end of the grace: %v", err)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if longer.Err() == nil {
			t.Error("it has not ended after the grace")
		}
	})
}

// forget ends workload w and removes its tokens, like another agent's sweep.
func (w *world) forget() {
	w.stop("w")
	if _, err := cluster.Apply(w.t.Context(), w.ledger, &command.DeleteTokens{IDs: w.noted()}); err != nil {
		w.t.Error(err)
	}
}

// TestAccessorOfAStranger: a node that names another's token as that of its workload, when it asks for one and when it
// has it revoked, ends no token but its own.
func TestAccessorOfAStranger(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting)
	w.start("w", "a", "default", "web")
	stranger := "77777777-0000-4000-8000-000000000000"
	f.tokens["default"] = map[string]identity.Token{stranger: {Accessor: stranger}}
	named := claim.Token{
		ID: w.nextID(), Accessor: stranger, Workload: ref("w"), Node: "a", Service: "web", Consul: "default",
	}
	chosen := named
	chosen.ID, chosen.Accessor = stranger, ""
	for _, token := range []claim.Token{named, chosen} {
		check.NoError(t, w.Intend(w.within(), token))
		if noted := w.token(token.ID); noted.Accessor != "" {
			t.Errorf("the ledger has the accessor %s of a node", noted.Accessor)
		}
		check.NoError(t, w.Revoke(w.within(), token, ""))
		if !slices.Contains(f.has("default"), stranger) {
			t.Fatal("the stranger's token is gone")
		}
		if slices.Contains(w.noted(), token.ID) {
			t.Errorf("the ledger still has %s", token.ID)
		}
	}
}

func TestLogin(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, login)
	token := w.start("w", "a", "login", "web")[0]
	first, secret := w.derive(token)
	if first.Accessor == token.ID || w.token(token.ID).Accessor != first.Accessor || w.token(token.ID).ExpiresAt.IsZero() {
		t.Errorf("derived %+v, noted %+v", first, w.token(token.ID))
	}
	if err := w.Revoke(w.within(), token, ""); err != nil { // who revokes has lost all but the intent
		t.Errorf("revoke without the secret: %v", err)
	}
	if len(w.noted()) != 1 || len(f.has("login")) != 1 {
		t.Errorf("without the secret: the ledger has %v, Consul %v", w.noted(), f.has("login"))
	}
	check.NoError(t, w.Revoke(w.within(), token, secret))
	if len(w.noted()) != 0 || len(f.has("login")) != 0 {
		t.Errorf("with the secret: the ledger has %v, Consul %v", w.noted(), f.has("login"))
	}

	f.privileged = true
	both := w.start("x", "a", "login", "unanswered", "web")
	w.derive(both[1])
	for _, token := range both {
		if err := w.Revoke(w.within(), token, ""); err != nil {
			t.Errorf("revoke with the plugin's token: %v", err)
		}
	}
	if noted := w.noted(); !slices.Equal(noted, []string{both[0].ID}) || len(f.has("login")) != 0 {
		t.Errorf("with the plugin's token: the ledger has %v, not only the one of no known accessor, Consul %v", noted,
			f.has("login"))
	}
}

// TestLoginsEndByThemselves checks tokens whose secrets are lost, while nobody may list them.
func TestLoginsEndByThemselves(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, login)
	f.fail["list"] = status.Error(codes.FailedPrecondition, "the plugin has no token for it")
	young, old, never, unanswered := w.start("w", "a", "login", "young")[0], w.start("x", "a", "login",
		"old")[0], w.start("y", "a", "login", "never")[0], w.start("z", "a", "login", "unanswered")[0]
	w.derive(young)
	for token, ends := range map[claim.Token]time.Time{old: time.Now().Add(-2 * clockMargin), never: {}} {
		token.Accessor, token.ExpiresAt = w.nextID(), ends
		if _, err := cluster.Apply(t.Context(), w.ledger, &command.PutToken{Token: token}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"w", "x", "y", "z"} {
		w.stop(id)
	}
	report := w.sweep(false)
	revoked, left := swept(report)
	if !slices.Equal(revoked, []string{old.ID}) {
		t.Errorf("gone are %v", revoked)
	}
	if !strings.Contains(left[young.ID], "cannot be revoked and expires at ") ||
		!strings.Contains(left[unanswered.ID], "cannot be revoked and expires at ") ||
		!strings.Contains(left[never.ID], "consul acl token delete -accessor-id ") {
		t.Errorf("left are %q", left)
	}
	if len(report.Problems) != 0 {
		t.Errorf("problems: %v", report.Problems)
	}
	if err := report.Err(); err == nil || strings.Contains(err.Error(), young.ID) ||
		!strings.Contains(err.Error(), never.ID) {
		t.Errorf("to be done better: %v", err)
	}

	// Now they can be listed: the unanswered one does not exist.
	delete(f.fail, "list")
	w.doubt(unanswered.ID, true)
	if revoked, _ := swept(w.sweep(false)); !slices.Equal(revoked, []string{unanswered.ID}) || len(w.doubtful) != 0 {
		t.Errorf("gone are %v, in doubt %v", revoked, w.doubtful)
	}
}

func TestOver(t *testing.T) {
	now := time.Now()
	for name, row := range map[string]struct {
		token claim.Token
		want  bool
	}{
		"ended":                   {claim.Token{Accessor: "x", ExpiresAt: now.Add(-time.Hour)}, true},
		"by another clock, maybe": {claim.Token{Accessor: "x", ExpiresAt: now.Add(-time.Second)}, false},
		"lives":                   {claim.Token{Accessor: "x", ExpiresAt: now.Add(time.Hour)}, false},
		"lives for ever":          {claim.Token{Accessor: "x", CreatedAt: now.Add(-1000 * time.Hour)}, false},
		"old, and unanswered":     {claim.Token{CreatedAt: now.Add(-26 * time.Hour)}, true},
		"young, and unanswered":   {claim.Token{CreatedAt: now.Add(-24 * time.Hour)}, false},
	} {
		if over(row.token) != row.want {
			t.Errorf("%s: %v", name, !row.want)
		}
	}
}

// TestSweepGoesOn checks that a sweep continues if one Consul cannot be listed and one token cannot be revoked.
func TestSweepGoesOn(t *testing.T) {
	f := newFake()
	other := service.Consul{Name: "other"}
	w := newWorld(t, f.ask, minting, other)
	here, there, lost := w.start("w", "a", "default", "web")[0], w.start("x", "a", "other", "web")[0], w.start("y", "a",
		"removed", "web")[0]
	w.derive(here)
	w.derive(there)
	for _, id := range []string{"w", "x", "y"} {
		w.stop(id)
	}
	f.fail["list other"], f.fail["revoke default"] = status.Error(codes.Unavailable,
		"no leader"), status.Error(codes.PermissionDenied, "acl")
	report := w.sweep(false)
	revoked, left := swept(report)
	if !slices.Equal(revoked, []string{there.ID}) || !strings.Contains(left[here.ID], "acl") ||
		!strings.Contains(left[lost.ID], `no consul block is named "removed"`) {
		t.Errorf("revoked %v, left %v", revoked, left)
	}
	if len(report.Problems) != 1 || !strings.Contains(report.Problems[0].Error(), "no leader") {
		t.Errorf("problems: %v", report.Problems)
	}
	if err := report.Err(); err == nil || !strings.Contains(err.Error(), "no leader") ||
		!strings.Contains(err.Error(), here.ID) {
		t.Errorf("to be done better: %v", err)
	}
	clear(f.fail)
	if revoked, _ := swept(w.sweep(false)); !slices.Equal(revoked, []string{here.ID}) {
		t.Errorf("then revoked %v", revoked)
	}
	if left := w.noted(); !slices.Equal(left, []string{lost.ID}) || len(f.has("default")) != 0 {
		t.Errorf("left are %v, and in Consul %v", left, f.has("default"))
	}
}

// TestGoneButNotForgotten lets the ledger fail after Consul has revoked the token.
func TestGoneButNotForgotten(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting)
	token := w.start("w", "a", "default", "web")[0]
	w.derive(token)
	w.stop("w")
	l := &failing{Ledger: w.Ledger, delete: command.ErrDiskFull}
	w.Ledger = l
	report := w.sweep(false)
	if len(report.Swept) != 1 || !report.Swept[0].Revoked || !errors.Is(report.Err(), command.ErrDiskFull) {
		t.Errorf("the report is %+v", report)
	}
	l.delete = nil
	if w.sweep(false); len(w.noted()) != 0 {
		t.Errorf("the ledger has %v", w.noted())
	}
}

// TestTokenThatIsBeingMade checks that a sweep never treats a token that a workload is just getting as an orphan.
func TestTokenThatIsBeingMade(t *testing.T) {
	for _, consul := range []service.Consul{minting, login} {
		for _, instant := range []string{"before the list", "after the list", "while a login is noted"} {
			t.Run(consul.Name+", "+instant, func(t *testing.T) {
				f := newFake()
				w := newWorld(t, f.ask, consul)
				give := func(context.Context) { w.derive(w.start("w", "a", consul.Name, "web")[0]) }
				switch instant {
				case "before the list":
					f.before["list"] = give
				case "after the list":
					f.after["list"] = give
				default:
					token := w.start("w", "a", consul.Name, "web")[0]
					f.after["derive"] = func(context.Context) {
						if found := w.sweep(false).Swept; len(found) != 0 {
							t.Errorf("swept %+v", found)
						}
					}
					w.derive(token)
				}
				if found := w.sweep(false).Swept; len(found) != 0 {
					t.Errorf("swept %+v", found)
				}
				if len(f.has(consul.Name)) != 1 {
					t.Errorf("Consul has %v", f.has(consul.Name))
				}
			})
		}
	}
}

// TestDeriveAndRevokeAtOnce checks that after both calls there is no token, in either order, and that it is not
// derived again.
func TestDeriveAndRevokeAtOnce(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting)
	for i := range 50 {
		token := w.start(fmt.Sprint("w", i), "a", "default", "web")[0]
		var both sync.WaitGroup
		both.Go(func() { _, _, _ = w.Derive(w.within(), token) })
		both.Go(func() {
			if err := w.Revoke(w.within(), token, ""); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		if _, _, err := w.Derive(w.within(), token); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("after its end: %v", err)
		}
	}
	if has, noted := f.has("default"), w.noted(); len(has) != 0 || len(noted) != 0 {
		t.Errorf("Consul has %v, the ledger %v", has, noted)
	}
}

// TestSweepWaitsForDerive ends a workload during its derivation.
func TestSweepWaitsForDerive(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting)
	token := w.start("w", "a", "default", "web")[0]
	asked, answer := make(chan struct{}), make(chan struct{})
	f.before["derive"] = func(context.Context) { close(asked); <-answer }
	var both sync.WaitGroup
	both.Go(func() { w.derive(token) })
	<-asked
	w.stop("w")
	both.Go(func() { w.sweep(false) })
	check.Eventually(t, "the sweep waits", func() bool { return w.tokens.Users(token.ID) == 2 })
	close(answer)
	both.Wait()
	if has := f.has("default"); len(has) != 0 || len(w.noted()) != 0 {
		t.Errorf("Consul has %v, the ledger %v", has, w.noted())
	}
}

// TestTwoBlocksOfOneConsul checks that each token is listed once, under the Consul in the ledger.
func TestTwoBlocksOfOneConsul(t *testing.T) {
	f := newFake()
	other := minting
	other.Name = "other"
	w := newWorld(t, f.ask, minting, other)
	lives := w.start("w", "a", "default", "web")[0]
	w.derive(lives)
	cluster, err := w.clusterID(t.Context())
	check.NoError(t, err)
	unknown := identity.Token{
		Accessor: w.nextID(),
		Subject:  identity.Subject{Cluster: cluster, Node: "a", Namespace: "default", Workload: "gone", Service: "web"},
	}
	foreign := identity.Token{
		Accessor: w.nextID(),
		Subject:  identity.Subject{Cluster: "another", Node: "a", Namespace: "default", Workload: "gone", Service: "web"},
	}
	f.tokens["default"][unknown.Accessor], f.tokens["default"][foreign.Accessor] = unknown, foreign
	f.tokens["other"] = f.tokens["default"]
	if revoked, left := swept(w.sweep(true)); len(revoked) != 0 || len(left) != 1 ||
		left[unknown.Accessor] != `Consul "default" has it, but the ledger has not` {
		t.Errorf("a dry run: revoked %v, found %v", revoked, left)
	}
	if len(f.has("default")) != 3 {
		t.Errorf("a dry run left %v", f.has("default"))
	}
	if revoked, _ := swept(w.sweep(false)); !slices.Equal(revoked, []string{unknown.Accessor}) {
		t.Errorf("revoked %v", revoked)
	}
	if n := f.count("revoke"); n != 1 {
		t.Errorf("revoked %d times", n)
	}
	if has := f.has("default"); !slices.Contains(has, foreign.Accessor) || !slices.Contains(has, lives.ID) {
		t.Errorf("Consul has %v", has)
	}
	if e := w.Events.Recent(1); len(e) != 1 || e[0].Type != "token-revoked" || e[0].Subject != "gone" {
		t.Errorf("the event is %+v", e)
	}
}

func TestManyAreSwept(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting)
	w.revokes = rate.NewLimiter(rate.Inf, 1)
	const many = command.MaxItems + 20
	for i := range many {
		w.derive(w.start(fmt.Sprint("w", i), "a", "default", "web")[0])
		w.stop(fmt.Sprint("w", i))
	}
	if n := len(w.sweep(false).Swept); n != many || len(w.noted()) != 0 || len(f.has("default")) != 0 {
		t.Errorf("swept %d, the ledger has %d, Consul %d", n, len(w.noted()), len(f.has("default")))
	}
}

func TestNoConsulIsAsked(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask)
	if report := w.sweep(false); len(report.Swept)+len(report.Problems) != 0 || len(f.calls) != 0 {
		t.Errorf("a sweep of nothing: %+v, %v", report, f.calls)
	}
	if err := w.Read(w.within(), claim.Token{Consul: "default"}, "s"); err == nil ||
		!strings.Contains(err.Error(), "the agent's configuration has none") {
		t.Errorf("got %v", err)
	}
}

func TestList(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting)
	lives, gone := w.start("w", "a", "default", "web", "api"), w.start("x", "b", "default", "web")
	w.stop("x")
	list := func(namespace, workload string) (ids []string) {
		t.Helper()
		all, err := w.List(w.within(), namespace, workload)
		check.NoError(t, err)
		for _, l := range all {
			if l.Orphan != (l.Workload == ref("x")) || l.Accessor != l.ID {
				t.Errorf("%+v", l)
			}
			ids = append(ids, l.ID)
		}
		slices.Sort(ids)
		return ids
	}
	all := []string{lives[0].ID, lives[1].ID, gone[0].ID}
	if got := list("", ""); !slices.Equal(got, all) {
		t.Errorf("all are %v", got)
	}
	if got := list("default", "w"); !slices.Equal(got, all[:2]) {
		t.Errorf("of the workload are %v", got)
	}
	if got := list("other", ""); len(got) != 0 {
		t.Errorf("of another namespace are %v", got)
	}
	on, err := w.OnNode(w.within(), "b")
	if err != nil || len(on) != 1 || on[0].ID != gone[0].ID {
		t.Errorf("on the node are %+v, %v", on, err)
	}
}

// An empty answer comes from a Consul without ACLs; an incomplete token is a fault.
func TestPluginThatGivesNothing(t *testing.T) {
	var answer identity.Token
	w := newWorld(t, func(ctx context.Context, _ string, fn func(context.Context, identity.Identity) error) error {
		return fn(ctx, only{token: answer})
	}, minting)
	token := w.start("w", "a", "default", "web")[0]
	if got, secret, err := w.Derive(w.within(), token); err != nil || secret != "" || got.Accessor != "" {
		t.Errorf("got %+v, %v", got, err)
	}
	answer.Accessor = token.ID
	if _, _, err := w.Derive(w.within(), token); status.Code(err) != codes.Internal {
		t.Errorf("got %v", err)
	}
}

// only returns a token without a secret.
type only struct {
	identity.Identity
	token identity.Token
}

func (o only) Derive(context.Context, service.Consul, identity.DeriveRequest) (identity.Token, string, error) {
	return o.token, "", nil
}

// TestTheTokenOfAnother checks that a workload does not get it, even if the plugin says that it is the one.
func TestTheTokenOfAnother(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting)
	theirs := w.start("theirs", "a", "default", "web")[0]
	w.derive(theirs)
	token := w.start("own", "a", "default", "web")[0]
	w.Identity = func(ctx context.Context, _ string, fn func(context.Context, identity.Identity) error) error {
		return fn(ctx, only{token: f.tokens["default"][theirs.ID]})
	}
	if _, secret, err := w.Derive(w.within(), token); status.Code(err) != codes.Internal || secret != "" ||
		!strings.Contains(err.Error(), "of workload default/theirs") {
		t.Errorf("got %v", err)
	}
	if has := f.has("default"); len(has) != 1 {
		t.Errorf("the other's token is gone: %v", has)
	}
}

// TestNoSecretIsTold checks the log, the events, the errors and the ledger.
func TestNoSecretIsTold(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, login)
	token := w.start("w", "a", "login", "web")[0]
	w.derive(token)
	w.Ledger = &failing{Ledger: w.Ledger, put: command.ErrUncertain}
	f.fail["revoke"] = status.Error(codes.Unavailable, "no leader")
	_, _, err := w.Derive(w.within(), token)
	text := fmt.Sprint(err, w.log, w.Events.Recent(10))
	if err == nil || !strings.Contains(text, "could be neither recorded nor revoked") {
		t.Errorf("told: %s", text)
	}
	err = w.ledger.Snapshot()
	check.NoError(t, err)
	for _, secret := range append(f.jwts, "secret-of-") {
		if strings.Contains(text, secret) {
			t.Errorf("a secret is visible: %s", text)
		}
	}
	for path, content := range files(t, w.dir) {
		for _, secret := range append(f.jwts, "secret-of-") {
			if strings.Contains(content, secret) {
				t.Errorf("a secret is in %s", path)
			}
		}
	}
}
