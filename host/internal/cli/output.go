package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// The output formats; a command may allow more than table and json.
const (
	formatTable   = "table"
	formatJSON    = "json"
	formatDocker  = "docker"
	formatSystemd = "systemd"
	formatDropin  = "systemd-dropin"
)

// Printer writes what commands answer, in the format of -o, and what they say beside that.
type Printer struct {
	Out, Err io.Writer
	format   string
	noColor  bool
	wide     bool  // tables may be wider than the terminal
	outErr   error // the first of the output
}

// extraFormats annotates a command that has formats of its own.
const extraFormats = "formats"

func (p *Printer) checkFormat(cmd *cobra.Command) error {
	allowed := append([]string{formatTable, formatJSON}, strings.Fields(cmd.Annotations[extraFormats])...)
	if slices.Contains(allowed, p.format) {
		return nil
	}
	return fmt.Errorf("output format %q is not one of %s", p.format, strings.Join(allowed, ", "))
}

// Print writes the answer of a call, or another value, as JSON, or calls people. It returns the call's error, or that
// of the output.
func (p *Printer) Print(v any, err error, people func()) error {
	if err != nil {
		return err
	}
	p.noteMeta(v)
	if p.format == formatJSON {
		p.writeJSON(v, "  ")
	} else {
		people()
	}
	return p.outErr
}

// noteMeta notes what answers say of themselves: warnings, how old they may be, and that there is more.
func (p *Printer) noteMeta(v any) {
	if m, ok := v.(interface{ GetWarnings() []string }); ok {
		for _, w := range m.GetWarnings() {
			p.Note("warning: %s", w)
		}
	}
	if m, ok := v.(interface{ GetMeta() *hostv1.ReadMeta }); ok && m.GetMeta() != nil {
		switch old := m.GetMeta().GetAge().AsDuration(); {
		case !m.GetMeta().GetKnownLeader():
			p.Note("warning: this server knows of no leader: what it shows may be old")
		case old > 0:
			p.Note("as it was %s ago or later", span(old))
		}
	}
	if m, ok := v.(interface{ GetNextToken() string }); ok && m.GetNextToken() != "" {
		p.Note("there is more: add -page-token %s", m.GetNextToken())
	}
}

// Note writes a line for people to standard error.
func (p *Printer) Note(format string, args ...any) {
	fmt.Fprintln(p.Err, printable(fmt.Sprintf(format, args...)))
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colored reports whether a stream takes colours (https://no-color.org).
func (p *Printer) colored(w io.Writer) bool {
	return !p.noColor && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)
}

// printLine is Print for one of several, which is a line of JSON.
func (p *Printer) printLine(v any, people func()) error {
	if p.format == formatJSON {
		p.writeJSON(v, "")
	} else {
		people()
	}
	return p.outErr
}

// write writes to standard output. Print returns the first error.
func (p *Printer) write(text string) {
	if _, err := io.WriteString(p.Out, text); err != nil && p.outErr == nil {
		p.outErr = err
	}
}

// canAsk reports whether somebody sits at a terminal.
func canAsk() bool { return isTerminal(os.Stdin) }

// confirm asks a person who sits at a terminal. A program is not asked. The error means that the answer was no.
func (p *Printer) confirm(yes bool, format string, args ...any) error {
	if yes || !canAsk() {
		return nil
	}
	fmt.Fprint(p.Err, printable(fmt.Sprintf(format, args...))+" [y/N] ")
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return Coded(ExitRefused, errors.New("nothing was changed"))
	}
	return nil
}

// Done is Print of one line of text.
func (p *Printer) Done(v any, err error, format string, args ...any) error {
	return p.Print(v, err, func() { p.Say(format, args...) })
}

// Say writes a line to standard output.
func (p *Printer) Say(format string, args ...any) {
	p.write(printable(fmt.Sprintf(format, args...)) + "\n")
}

// writeJSON writes a message, or another value, without characters that a terminal would obey: JSON leaves some as they
// are. An empty indent keeps it on one line.
func (p *Printer) writeJSON(v any, indent string) {
	var line, out bytes.Buffer
	var err error
	if m, ok := v.(proto.Message); ok {
		err = appendMessage(&line, m.ProtoReflect())
	} else {
		err = appendPlain(&line, v)
	}
	safe := escape.String(line.String())
	if out.WriteString(safe); err == nil && indent != "" {
		out.Reset()
		err = json.Indent(&out, []byte(safe), "", indent)
	}
	if err != nil {
		p.outErr = fmt.Errorf("write JSON: %w", err)
		return
	}
	p.write(out.String() + "\n")
}

// Table aligns rows for people. A cell may carry a colour.
type Table struct {
	rows   [][]Cell
	width  []int
	header bool
}

// Cell is a text with its colour.
type Cell struct {
	Text  string
	Color Color
}

// Color is an SGR code; empty: none.
type Color string

// The colours of cells.
const (
	Red    Color = "31"
	Green  Color = "32"
	Yellow Color = "33"
	Bold   Color = "1"
)

// NewTable returns a table with a header in bold, or without one.
func NewTable(header ...string) *Table {
	t := &Table{}
	if t.header = len(header) > 0; t.header {
		row := make([]Cell, len(header))
		for i, text := range header {
			row[i] = Cell{text, Bold}
		}
		t.add(row...)
	}
	return t
}

// Row adds cells without colour.
func (t *Table) Row(cells ...any) {
	row := make([]Cell, len(cells))
	for i, c := range cells {
		var colored bool
		if row[i], colored = c.(Cell); !colored {
			row[i].Text = fmt.Sprint(c)
		}
	}
	t.add(row...)
}

// some adds a row, unless its value is empty or zero.
func (t *Table) some(name string, value any) {
	text := fmt.Sprint(value)
	if c, is := value.(Cell); is {
		text = c.Text
	}
	if text != "" && text != "0" {
		t.Row(name, value)
	}
}

func (t *Table) add(row ...Cell) {
	for i := range row {
		row[i].Text = printable(row[i].Text)
		if row[i].Text == "" {
			row[i].Text = "-"
		}
		if i == len(t.width) {
			t.width = append(t.width, 0)
		}
		t.width[i] = max(t.width[i], utf8.RuneCountInString(row[i].Text))
	}
	t.rows = append(t.rows, row)
}

// text is the table with two spaces between columns and none at the end of a line.
func (t *Table) text(colored bool) string {
	var out strings.Builder
	for _, row := range t.rows {
		for i, c := range row {
			out.WriteString(c.painted(colored))
			if i < len(row)-1 {
				out.WriteString(strings.Repeat(" ", t.width[i]-utf8.RuneCountInString(c.Text)+2))
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// narrowest is the width to which a column may be shortened.
const narrowest = 12

// fit shortens the widest columns of a list, and then drops the last ones, until it has at most so many characters a
// line. The first column stays: its names are arguments of other commands.
func (t *Table) fit(most int) {
	for t.header {
		over, widest := -most-len("  "), 0
		for n, width := range t.width {
			over += width + len("  ")
			if n > 0 && (widest == 0 || width > t.width[widest]) {
				widest = n
			}
		}
		switch {
		case over <= 0 || widest == 0:
			return
		case t.width[widest] > narrowest:
			t.width[widest] = max(narrowest, t.width[widest]-over)
			for _, row := range t.rows {
				if widest < len(row) && utf8.RuneCountInString(row[widest].Text) > t.width[widest] {
					row[widest].Text = cut(row[widest].Text, t.width[widest]-1) + "…"
				}
			}
		default:
			last := len(t.width) - 1
			t.width = t.width[:last]
			for n := range t.rows {
				t.rows[n] = t.rows[n][:min(last, len(t.rows[n]))]
			}
		}
	}
}

func (c Cell) painted(colored bool) string {
	if !colored || c.Color == "" {
		return c.Text
	}
	return "\x1b[" + string(c.Color) + "m" + c.Text + "\x1b[0m"
}

// Show writes a table to standard output.
func (p *Printer) Show(t *Table) {
	if f, ok := p.Out.(*os.File); ok && !p.wide {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			t.fit(width)
		}
	}
	p.write(t.text(p.colored(p.Out)))
}

// Tables is Print of tables: the first, and each of the others that has rows below its header.
func (p *Printer) Tables(v any, err error, first *Table, others ...section) error {
	return p.Print(v, err, func() {
		p.Show(first)
		for _, other := range others {
			p.Section(other.title, other.table)
		}
	})
}

// section is a further table with its title, which may be empty.
type section struct {
	title string
	table *Table
}

// Section shows a further table, if it has rows below its header; title may be empty.
func (p *Printer) Section(title string, t *Table) {
	if len(t.rows) > 1 {
		p.heading(title)
		p.Show(t)
	}
}

// heading begins a section; title may be empty.
func (p *Printer) heading(title string) {
	p.write("\n")
	if title != "" {
		p.Say("%s", title)
	}
}

// columns are what a list shows of each of its things: the cells of its row, or of several.
type columns[T any] struct {
	header []string
	row    func(t *Table, one T)
	// none is the note in place of an empty list.
	none string
}

func (c columns[T]) table(all []T) *Table {
	t := NewTable(c.header...)
	for _, one := range all {
		c.row(t, one)
	}
	return t
}

func (c columns[T]) show(p *Printer, all []T) {
	if t := c.table(all); len(t.rows) > 1 {
		p.Show(t)
	} else {
		p.Note("%s", c.none)
	}
}

// list is Print of a list.
func list[T any](p *Printer, v any, err error, all []T, c columns[T]) error {
	return p.Print(v, err, func() { c.show(p, all) })
}

// printable makes one line of a text from elsewhere, which could otherwise move the cursor or set the title of a
// terminal, and leaves out gRPC's words.
func printable(text string) string {
	return escape.String(escape.Sentence(strings.NewReplacer("\n", " ", "\t", " ").Replace(text)))
}

// size formats bytes in powers of two; 0 is unknown.
func size(bytes int64) string {
	if bytes <= 0 {
		return ""
	}
	return humanize.IBytes(uint64(bytes))
}

// age formats how long ago a time was, in its largest unit.
func age(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return span(time.Since(at.AsTime()))
}

func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// Was counts the things of a sentence in the past tense, such as "2 workloads were".
func Was(n int64, noun string) string {
	if n == 1 {
		return escape.Count(n, noun) + " was"
	}
	return escape.Count(n, noun) + " were"
}

// healthy is a cell with a health.
func healthy(ok bool) Cell {
	if ok {
		return Cell{"healthy", Green}
	}
	return Cell{"unhealthy", Red}
}

// yesNo is a cell whose no stands out.
func yesNo(yes bool) Cell {
	if yes {
		return Cell{"yes", ""}
	}
	return Cell{"no", Yellow}
}

// yesOr is a cell whose yes is good; no is the colour of the other.
func yesOr(yes bool, no Color) Cell {
	if yes {
		return Cell{"yes", Green}
	}
	return Cell{"no", no}
}

// stateCell is a cell with the state of a node, an agent, a claim, a workload, a plugin or a token.
func stateCell(state string) Cell {
	switch state {
	case "ready", "alive", "taken", "running", "valid":
		return Cell{state, Green}
	case "down", "failed", "unhealthy", "gone":
		return Cell{state, Red}
	case "stopped":
		return Cell{state, ""}
	default:
		return Cell{state, Yellow}
	}
}
