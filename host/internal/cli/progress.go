package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// redraw is the interval at which the durations of running steps are redrawn.
const redraw = 100 * time.Millisecond

// progress shows a workload's steps: redrawn in place on a terminal, elsewhere one
// line for each step that has ended. Close it before anything else writes.
type progress struct {
	w             io.Writer
	live, colored bool

	mu sync.Mutex
	// steps that are still redrawn; ended ones are dropped from the front.
	steps []*stepLine
	// failed are the lines of failed steps.
	failed []*stepLine
	// drawn is the number of lines above the cursor to redraw.
	drawn int
	// stop ends the redrawing, for which ticker stands.
	stop   func()
	ticker sync.WaitGroup
}

type stepLine struct {
	step  *hostv1.Step
	since time.Time
	brief bool // without the step's error, which is shown elsewhere
}

// undoNames are the names of steps' undos.
var undoNames = map[string]string{
	"claim": "release", "reserve": "free", "attach": "detach", "stage": "unstage", "publish": "unpublish",
	"register": "deregister", "identify": "revoke",
}

func (out *Printer) progress() *progress {
	stopped := make(chan struct{})
	p := &progress{
		w: out.Err, live: isTerminal(out.Err) && os.Getenv("TERM") != "dumb", colored: out.colored(out.Err),
		stop: sync.OnceFunc(func() { close(stopped) }),
	}
	if p.live {
		p.ticker.Go(func() {
			for {
				select {
				case <-time.After(redraw):
					p.mu.Lock()
					p.draw()
					p.mu.Unlock()
				case <-stopped:
					return
				}
			}
		})
	}
	return p
}

// close leaves the drawn lines in place. It may be called more than once.
func (p *progress) close() {
	p.stop()
	p.ticker.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live {
		p.draw()
	}
	p.steps, p.drawn = nil, 0
}

// step shows a step's new state.
func (p *progress) step(s *hostv1.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.find(s)
	before := line.step
	line.step, line.brief = s, s.GetState() == "failed" // see explain
	if line.brief {
		p.failed = append(p.failed, line)
	}
	if p.live {
		p.draw()
		return
	}
	// Plain lines: one when it ends, and one for each new reason to wait.
	same := before != nil && before.GetState() == s.GetState() && before.GetError() == s.GetError() &&
		before.GetNote() == s.GetNote()
	if same || s.GetState() == "running" && s.GetNote() == "" {
		return
	}
	fmt.Fprintln(p.w, line.text(false))
}

// explain shows the failed steps whose errors are not in err, with which the command ends.
func (p *progress) explain(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	shown := message(err)
	for _, line := range p.failed {
		if strings.Contains(shown, line.step.GetError()) {
			continue
		}
		shown += line.step.GetError()
		p.erase(p.w)
		line.brief = false
		fmt.Fprintln(p.w, line.text(p.colored))
		line.brief = true
	}
	p.failed = nil
	if p.live {
		p.draw()
	}
}

// find returns the line of a step, and adds one for a new step.
func (p *progress) find(s *hostv1.Step) *stepLine {
	for _, line := range p.steps {
		if o := line.step; o.GetName() == s.GetName() && o.GetVolume() == s.GetVolume() && o.GetService() == s.GetService() &&
			o.GetUndo() == s.GetUndo() {
			return line
		}
	}
	line := &stepLine{since: time.Now()}
	p.steps = append(p.steps, line)
	return line
}

// note writes a line above the steps.
func (p *progress) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase(p.w)
	fmt.Fprintln(p.w, printable(fmt.Sprintf(format, args...)))
	if p.live {
		p.draw()
	}
}

func (p *progress) erase(w io.Writer) {
	if p.drawn > 0 {
		fmt.Fprintf(w, "\x1b[%dA\x1b[J", p.drawn)
		p.drawn = 0
	}
}

// draw redraws the steps. Ended ones at the top are written a last time and dropped.
func (p *progress) draw() {
	width, height := 80, 24
	if f, ok := p.w.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 1 {
			width, height = w, h
		}
	}
	var out strings.Builder
	p.erase(&out)
	for len(p.steps) > 0 && p.steps[0].ended() {
		out.WriteString(p.steps[0].text(p.colored) + "\n")
		p.steps = p.steps[1:]
	}
	shown := p.steps[max(0, len(p.steps)-(height-1)):]
	for _, line := range shown {
		// A line that wraps would make the count of drawn lines wrong.
		out.WriteString(cut(line.text(false), width-1) + "\n")
	}
	p.drawn = len(shown)
	_, _ = io.WriteString(p.w, out.String()) // Nobody reads a terminal that is gone.
}

// waiting returns the steps that are not done.
func (p *progress) waiting() (steps []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.steps {
		if line.step.GetState() != "done" {
			steps = append(steps, line.text(false))
		}
	}
	return steps
}

func (l *stepLine) ended() bool {
	state := l.step.GetState()
	return state == "done" || state == "failed"
}

// text is "publish data ... done 1.2ms".
func (l *stepLine) text(colored bool) string {
	s := l.step
	name := s.GetName()
	if s.GetUndo() {
		name = cmp.Or(undoNames[name], "undo "+name)
	}
	if of := cmp.Or(s.GetVolume(), s.GetService()); of != "" {
		name += " " + of
	}
	state := s.GetState()
	took := time.Since(l.since)
	if l.ended() {
		took = s.GetTook().AsDuration()
	}
	if l.ended() {
		state = Cell{state, map[string]Color{"done": Green, "failed": Red}[state]}.painted(colored)
	}
	text := fmt.Sprintf("%s ... %s %s", printable(name), state, short(took))
	if s.GetAttempt() > 1 {
		text += fmt.Sprintf(" (try %d)", s.GetAttempt())
	}
	if s.GetError() != "" && !l.brief {
		text += ": " + printable(s.GetError())
	}
	if s.GetNote() != "" {
		text += ": " + printable(s.GetNote())
	}
	return text
}

// short formats a duration with about three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	default:
		return d.Round(100 * time.Millisecond).String()
	}
}

func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width)])
}
