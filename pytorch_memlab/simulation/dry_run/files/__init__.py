"""The overlay over the file system: a dry run changes nothing that was there before it.

Nothing here needs torch: every Python that a dry run starts joins the overlay at once.

Note [Overlay]

Every function of Python that takes a path is told the path of another file where the program has
changed something. ``layers.py`` knows what lies where. There are three kinds of places:

* what was there when the run began. It is read, never changed;
* what this run made itself, for real: new files and folders. It may be changed and removed;
* the folder of the overlay, in the folder for temporary files. It holds copies: of older files
  that the program changes, and of new ones that would hold tensors without values. These stand
  there by their sizes alone.

What the program removes or renames is only hidden. All of it is told by a journal in the folder of
the overlay, which every process of the run reads and appends to. So forks and new Pythons see the
same files. When the run ends, the folder goes.

``overlay.py`` decides where each intent goes (read, write, make, remove, rename), and names what is
kept. ``os_functions.py`` and ``opening.py`` replace Python's functions, ``processes.py`` looks at
commands that are started. Libraries that open paths by themselves are in ``torch_api/files``.
"""
