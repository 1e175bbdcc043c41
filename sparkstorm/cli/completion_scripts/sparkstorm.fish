function __sparkstorm_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l found (sparkstorm __complete $words[2..] "$word" 2>/dev/null)
    if test -n "$found"
        printf '%s\n' $found
    else
        __fish_complete_path "$word"
    end
end
complete -c sparkstorm -f -a '(__sparkstorm_complete)'
