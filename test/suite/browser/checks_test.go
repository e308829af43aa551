package browser

import "testing"

// The page of checks has what pannier doctor finds on the host: a driver whose socket is gone, with the command that
// shows more. So has the overview, once it is kept up to date. Who may not read the agent sees none of it.
func TestChecks(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	socket := r.Path("gone.sock")
	r.Run("driver", "register", "gone", "-endpoint", "unix://"+socket)
	b := newBrowser(t)
	b.signIn(r, r.reader)
	b.open(r.url("/"))
	b.live()
	b.sees(".problems", socket)
	b.sees(".problems .command", "pannier driver status gone")
	b.open(r.url("/checks"))
	b.live()
	for _, row := range []string{"mount propagation", "file system tools", "disk", "agent", "quorum", "tokens"} {
		b.sees("tbody strong", row)
	}
	b.sees("tbody tr", socket)
	b.sees("tbody tr:first-child .badge", "fail")
	b.sees("tbody .command", "pannier driver status gone")
	b.sees(`tbody a[href="/drivers/gone"]`, "gone is not healthy")
	b.looks()
	r.Run("driver", "deregister", "gone")
	b.until("the row goes away", `!document.body.innerText.includes("gone.sock")`)

	b = newBrowser(t)
	b.signIn(r, r.nobody)
	b.open(r.url("/checks"))
	b.live()
	b.sees("tbody tr", "not shown")
	if value[bool](b, `document.body.innerText.includes("mount propagation")`) {
		t.Error("a token without agent read sees the checks of the host")
	}
}
