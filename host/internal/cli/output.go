package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	escape "github.com/pannier/pannier/internal/printable"
)

// The output formats; a command may allow more than table and json.
const (
	formatTable   = "table"
	formatJSON    = "json"
	formatDocker  = "docker"
	formatSystemd = "systemd"
	formatDropin  = "systemd-dropin"
)

// extraFormats annotates a command that has formats of its own.
const extraFormats = "formats"

func (a *app) checkFormat(cmd *cobra.Command) error {
	allowed := []string{formatTable, formatJSON}
	allowed = append(allowed, strings.Fields(cmd.Annotations[extraFormats])...)
	for _, format := range allowed {
		if a.format == format {
			return nil
		}
	}
	return fmt.Errorf("output format %q is not one of %s", a.format, strings.Join(allowed, ", "))
}

// print writes a message as JSON, or calls table for people.
func (a *app) print(m proto.Message, table func() error) error {
	if a.format == formatJSON {
		return a.printJSON(m, "  ")
	}
	return table()
}

// confirm asks a person who sits at a terminal. A program is not asked. The error says that the answer was no.
func (a *app) confirm(yes bool, format string, args ...any) error {
	if yes || !isTerminal(os.Stdin) {
		return nil
	}
	fmt.Fprint(a.err, printable(fmt.Sprintf(format, args...))+" [y/N] ")
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return &codeError{errors.New("nothing was changed"), ExitRefused}
	}
	return nil
}

// answer prints a message of the API as JSON, or this line of text.
func (a *app) answer(m proto.Message, format string, args ...any) error {
	return a.print(m, func() error { return a.say(fmt.Sprintf(format, args...)) })
}

// say writes a line to standard output.
func (a *app) say(text string) error {
	_, err := fmt.Fprintln(a.out, printable(text))
	return err
}

// printJSON writes a message as JSON with the API's names; an empty indent
// keeps it on one line. It is indented again because protojson's whitespace varies from
// build to build.
func (a *app) printJSON(m proto.Message, indent string) error {
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("write %s as JSON: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return a.writeJSON(text, indent)
}

// printValue writes a value that is no message of the API as JSON.
func (a *app) printValue(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.writeJSON(text, "  ")
}

// writeJSON writes JSON without characters that a terminal would obey: JSON leaves some as they are.
func (a *app) writeJSON(text []byte, indent string) error {
	var line, out bytes.Buffer
	if err := json.Compact(&line, text); err != nil {
		return err
	}
	safe := escape.String(line.String())
	if indent == "" {
		out.WriteString(safe)
	} else if err := json.Indent(&out, []byte(safe), "", indent); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err := out.WriteTo(a.out)
	return err
}

// table aligns rows for people. A cell may carry a colour.
type table struct {
	rows  [][]cell
	width []int
}

type cell struct {
	text  string
	color color
}

// color is an SGR code; empty: none.
type color string

const (
	red    color = "31"
	green  color = "32"
	yellow color = "33"
	bold   color = "1"
)

func newTable(header ...string) *table {
	t := &table{}
	if len(header) > 0 {
		row := make([]cell, len(header))
		for i, text := range header {
			row[i] = cell{text, bold}
		}
		t.add(row...)
	}
	return t
}

// row adds cells without colour.
func (t *table) row(cells ...any) {
	row := make([]cell, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case cell:
			row[i] = c
		default:
			row[i] = cell{text: fmt.Sprint(c)}
		}
	}
	t.add(row...)
}

func (t *table) add(row ...cell) {
	for i := range row {
		row[i].text = printable(row[i].text)
		if row[i].text == "" {
			row[i].text = "-"
		}
		if i == len(t.width) {
			t.width = append(t.width, 0)
		}
		t.width[i] = max(t.width[i], utf8.RuneCountInString(row[i].text))
	}
	t.rows = append(t.rows, row)
}

// write writes the table, with two spaces between columns and none at the end of a line.
func (t *table) write(w io.Writer, colored bool) error {
	var out strings.Builder
	for _, row := range t.rows {
		for i, c := range row {
			text := c.text
			if colored && c.color != "" {
				text = "\x1b[" + string(c.color) + "m" + text + "\x1b[0m"
			}
			out.WriteString(text)
			if i < len(row)-1 {
				out.WriteString(strings.Repeat(" ", t.width[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		out.WriteByte('\n')
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// show writes a table to standard output.
func (a *app) show(t *table) error { return t.write(a.out, a.colored(a.out)) }

// printable makes one line of a text from elsewhere, which could otherwise move the cursor or set the title of a
// terminal.
func printable(text string) string {
	return escape.String(strings.NewReplacer("\n", " ", "\t", " ").Replace(text))
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

// healthy is a cell with a health.
func healthy(ok bool) cell {
	if ok {
		return cell{"healthy", green}
	}
	return cell{"unhealthy", red}
}
