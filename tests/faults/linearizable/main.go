// Linearizable checks histories of a register that a lock guards, with porcupine. A holder sends the lock's fencing token with
// each operation: it reads the register, and writes what follows from what it has read. A history is linearizable if the
// operations could have happened one after another, each between its call and its return, on a register that refuses lower
// tokens, and with no other write between a holder's read and its write.
//
// Its arguments are files, a history each, a JSON object a line (history.go). Status 0: all are linearizable; 1: one is not, and
// a page beside its file shows it; 2: one cannot be read, or not be decided in time.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// How long the check of one history may take.
const limit = time.Minute

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: linearizable FILE...")
		os.Exit(2)
	}
	status := 0
	total := map[string]int{}
	for _, file := range os.Args[1:] {
		read, err := readHistory(file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "linearizable:", err)
			os.Exit(2)
		}
		for _, one := range read {
			total[one.Op+" "+one.Outcome]++
		}
		result, info := porcupine.CheckOperationsVerbose(model, read.operations(), limit)
		switch result {
		case porcupine.Ok:
		case porcupine.Illegal:
			status = max(status, 1)
			fmt.Printf("%s: not linearizable, %d operations%s\n", file, len(read), page(file, info))
		default:
			status = 2
			fmt.Printf("%s: not decided within %v, %d operations\n", file, limit, len(read))
		}
	}
	fmt.Printf("histories: %d\n", len(os.Args)-1)
	for _, op := range []string{"read", "write"} {
		fmt.Printf("%ss: accepted %d, refused %d, unknown %d\n", op, total[op+" accepted"], total[op+" refused"], total[op+" unknown"])
	}
	if status == 0 {
		fmt.Println("all are linearizable")
	}
	os.Exit(status)
}

// page writes a page that shows a history, and says where it is.
func page(file string, info porcupine.LinearizationInfo) string {
	name := file + ".html"
	if err := porcupine.VisualizePath(model, info, name); err != nil {
		return ", no page: " + err.Error()
	}
	return "; see " + name
}
